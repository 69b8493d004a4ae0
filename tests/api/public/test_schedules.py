"""Schedules, as an operator sees them on every face."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests import patience
from tests.api.public.face import PublicFace, Refused, ScheduleSeen, Spec
from tests.api.public.hand import PATIENCE, Hand

YEARLY = "0 0 1 1 *"
JOB = Spec(
    payload=b'{"kind": "daily"}', type="report", priority=5, labels={"team": "a"},
    concurrency_key="tenant:1",
)  # fmt: skip


async def test_a_schedule_is_kept_as_it_was_given(face: PublicFace) -> None:
    made = await face.create_schedule(
        "nightly report: 100%",
        JOB,
        cron="30 6 * * mon-fri",
        timezone="Europe/Zurich",
        overlap="skip",
        catch_up=0.0,
    )
    assert made == await face.schedule("nightly report: 100%")
    assert made.next_at is not None
    assert replace(made, next_at=None) == ScheduleSeen(
        name="nightly report: 100%",
        cron="30 6 * * mon-fri",
        every=None,
        timezone="Europe/Zurich",
        overlap="skip",
        catch_up=0.0,
        source="operator",
        paused=False,
        next_at=None,
        last_at=None,
        last_job_id="",
        skipped=0,
        problem="",
        queue="default",
        type="report",
        payload=b'{"kind": "daily"}',
        priority=5,
        labels={"team": "a"},
        concurrency_key="tenant:1",
    )
    plain = await face.create_schedule("plain", Spec(), every=90)
    assert (plain.every, plain.overlap, plain.catch_up, plain.timezone) == (
        90,
        "allow",
        None,
        "UTC",
    )
    found, token = await face.schedules()
    assert [one.name for one in found] == ["nightly report: 100%", "plain"]
    assert (token, found[0].payload) == ("", b"")


async def test_a_schedule_submits_its_jobs(face: PublicFace, hand: Hand) -> None:
    await face.create_schedule("often", JOB, every=1)
    job = await hand.run()
    assert (job.type, job.payload, job.priority) == ("report", JOB.payload, 5)
    assert dict(job.labels) == {"team": "a", "cron": "often"}
    second = await hand.run()
    assert second.id != job.id
    async with patience.timeout(PATIENCE):
        while not (seen := await face.schedule("often")).last_at:
            await asyncio.sleep(0.05)
    last = await face.get(seen.last_job_id)
    assert last.key is not None
    assert last.key.startswith("cron:often:")
    await face.remove_schedule("often")


async def test_pause_run_resume_and_remove(face: PublicFace) -> None:
    await face.create_schedule("s", JOB, cron=YEARLY)
    paused = await face.pause_schedule("s")
    assert (paused.paused, paused.next_at) == (True, None)
    assert await face.pause_schedule("s") == paused
    job_id = await face.run_schedule("s")
    job = await face.get(job_id)
    assert (job.type, job.labels, job.key) == ("report", {"team": "a", "cron": "s"}, None)
    assert job.concurrency_key == "tenant:1"
    seen = await face.schedule("s")
    assert (seen.last_job_id, seen.paused) == (job_id, True)
    resumed = await face.resume_schedule("s")
    assert not resumed.paused
    assert resumed.next_at is not None
    await face.remove_schedule("s")
    assert (await face.schedules())[0] == []
    assert (await face.get(job_id)).job_id == job_id
    calls = (
        face.schedule, face.pause_schedule, face.resume_schedule, face.run_schedule,
        face.remove_schedule,
    )  # fmt: skip
    for call in calls:
        with pytest.raises(Refused) as refused:
            await call("s")
        assert refused.value.code == "NOT_FOUND"


async def test_pages_of_schedules(face: PublicFace) -> None:
    for n in range(5):
        await face.create_schedule(f"s{n}", Spec(), cron=YEARLY)
    first, token = await face.schedules(2)
    second, last = await face.schedules(3, token)
    assert [one.name for one in (*first, *second)] == [f"s{n}" for n in range(5)]
    assert (bool(token), last) == (True, "")
    for limit in (-1, 1_001):
        with pytest.raises(Refused) as refused:
            await face.schedules(limit)
        assert refused.value.code == "INVALID_ARGUMENT"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "cron"),
    ({"cron": "* * * *"}, "cron"),
    ({"cron": YEARLY, "every": 5}, "cron"),
    ({"every": 0}, "every"),
    ({"cron": YEARLY, "timezone": "Mars/Base"}, "timezone"),
    ({"every": 5, "timezone": "Europe/Zurich"}, "timezone"),
    ({"cron": YEARLY, "catch_up": -1.0}, "catch_up"),
    ({"cron": YEARLY, "job": Spec(key="k")}, "idempotency_key"),
    ({"cron": YEARLY, "job": Spec(run_at=2_000_000_000.0)}, "run_at"),
    ({"cron": YEARLY, "job": Spec(unique={"key": "k"})}, "unique"),
    ({"cron": YEARLY, "job": Spec(priority=10)}, "priority"),
    ({"cron": YEARLY, "job": Spec(payload=b'"' + b"x" * 65_536 + b'"')}, "payload"),
    ({"cron": YEARLY, "name": "x" * 201}, "name"),
]


async def test_what_is_wrong_is_named_and_has_no_effect(face: PublicFace) -> None:
    for settings, field in WRONG:
        given = {"name": "s", "job": Spec(), **settings}
        with pytest.raises(Refused) as refused:
            await face.create_schedule(given.pop("name"), given.pop("job"), **given)
        assert (refused.value.code, refused.value.field) == ("INVALID_ARGUMENT", field), settings
    with pytest.raises(Refused) as refused:
        await face.create_schedule("s", Spec(queue="nowhere"), cron=YEARLY)
    assert refused.value.code == "NOT_FOUND"
    assert (await face.schedules())[0] == []
    await face.create_schedule("s", Spec(), cron=YEARLY)
    with pytest.raises(Refused) as refused:
        await face.create_schedule("s", Spec(), cron="@hourly")
    assert refused.value.code == "ALREADY_EXISTS"
    assert (await face.schedule("s")).cron == YEARLY
