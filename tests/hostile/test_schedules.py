"""Roles for schedules, and bad messages that must have no effect."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import pytest

from jobqueue.core import cron
from jobqueue.core.cron import _FIELDS, MAX_CRON_LENGTH, Cron, _Field
from jobqueue.core.errors import InvalidArgument, PermissionDenied
from jobqueue.core.job import JobSpec
from jobqueue.core.schedule import MAX_DECLARED, ScheduleSpec
from tests.hostile.known_callers import over_grpc, over_http, serving

SPEC = ScheduleSpec(name="s", job=JobSpec(payload=b"{}"), cron="@yearly")


async def test_readers_read_operators_change_and_workers_declare() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        remotes = {
            name: await stack.enter_async_context(over_grpc(server, name))
            for name in ("web", "ops", "night", "hands")
        }
        for name in ("web", "night", "hands"):
            with pytest.raises(PermissionDenied):
                await remotes[name].create_schedule(SPEC)
        await remotes["ops"].create_schedule(SPEC)
        for name in ("web", "ops", "night"):
            assert (await remotes[name].get_schedule("s")).name == "s"
            assert len((await remotes[name].list_schedules()).schedules) == 1
        with pytest.raises(PermissionDenied):
            await remotes["hands"].get_schedule("s")
        for change in ("pause_schedule", "resume_schedule", "run_schedule", "remove_schedule"):
            with pytest.raises(PermissionDenied):
                await getattr(remotes["web"], change)("s")
        own = ScheduleSpec(name="own", job=JobSpec(payload=b"{}"), cron="@yearly")
        for name in ("web", "ops"):
            with pytest.raises(PermissionDenied):
                await remotes[name].declare_schedules([own])
        with pytest.raises(PermissionDenied, match="needs the role client, too"):
            await remotes["hands"].declare_schedules([own])  # it may not submit jobs either
        assert await remotes["night"].declare_schedules([own]) == [None]
        async with over_http(server, "web") as client:
            assert (await client.get("/schedules/own")).json()["source"] == "code"
            assert (await client.post("/schedules/own/run")).status_code == 403
            assert (await client.delete("/schedules/own")).status_code == 403


async def test_a_worker_cannot_declare_without_end() -> None:
    many = [ScheduleSpec(name=f"{n}", job=JobSpec(payload=b"1"), every=60) for n in range(1_001)]
    assert len(many) > MAX_DECLARED
    async with serving() as server, over_grpc(server, "night") as night:
        with pytest.raises(InvalidArgument, match="schedules"):
            await night.declare_schedules(many)
        assert (await night.list_schedules()).schedules == []


async def test_changes_of_schedules_are_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, AsyncExitStack() as stack:
        ops = await stack.enter_async_context(over_grpc(server, "ops"))
        night = await stack.enter_async_context(over_grpc(server, "night"))
        with caplog.at_level(logging.INFO, "jobqueue.audit"):
            await ops.create_schedule(SPEC)
            await ops.pause_schedule("s")
            await night.declare_schedules([ScheduleSpec(name="a", job=SPEC.job, every=60)])
            async with over_http(server, "ops") as client:
                body = {"name": "h", "every": 60, "job": {"payload": 1}}
                assert (await client.post("/schedules", json=body)).status_code == 201
                await client.delete("/schedules/h")
    told = [
        (one.caller, one.action, one.object, one.outcome)  # type: ignore[attr-defined]
        for one in caplog.records
        if one.name == "jobqueue.audit"
    ]
    assert told == [
        ("ops", "schedule.create", "s", "OK"),
        ("ops", "schedule.pause", "s", "OK"),
        ("night", "schedule.declare", "a", "OK"),
        ("ops", "schedule.create", "h", "OK"),
        ("ops", "schedule.remove", "h", "OK"),
    ]


async def test_a_long_cron_expression_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, one of 4 MB took seconds of the server's loop, and was stored and listed."""
    parsed: list[str] = []
    parse = _Field.parse

    def noted(self: _Field, text: str) -> frozenset[int]:
        parsed.append(text)
        return parse(self, text)

    monkeypatch.setattr(_Field, "parse", noted)
    long = ScheduleSpec(name="s", job=SPEC.job, cron=f"*{',*' * 100_000} * * * *")
    async with serving() as server, AsyncExitStack() as stack:
        ops = await stack.enter_async_context(over_grpc(server, "ops"))
        night = await stack.enter_async_context(over_grpc(server, "night"))
        with pytest.raises(InvalidArgument, match=f"at most {MAX_CRON_LENGTH}"):
            await ops.create_schedule(long)
        (error,) = await night.declare_schedules([long])
        assert isinstance(error, InvalidArgument)
        async with over_http(server, "ops") as client:
            body = {"name": "s", "cron": long.cron[:9_000] + " * * * *", "job": {"payload": 1}}
            assert (await client.post("/schedules", json=body)).status_code == 400
    assert not parsed


def test_a_cron_expression_may_list_every_value() -> None:
    lists = [",".join(map(str, range(one.low, one.high + 1))) for one in _FIELDS]
    Cron.parse(" ".join(lists))


def test_time_zones_are_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, each unknown one took a walk through their files: 20 ms of the server's loop."""
    walks: list[None] = []

    def walk() -> set[str]:
        walks.append(None)
        return {"Europe/Zurich"}

    monkeypatch.setattr(cron, "available_timezones", walk)
    cron._known_zones.cache_clear()
    try:
        for zone in ("Europe/Zuric", "nowhere", "x" * 100_000):
            with pytest.raises(InvalidArgument, match="timezone"):
                Cron.parse("@daily", zone)
        assert len(walks) == 1
    finally:
        cron._known_zones.cache_clear()


def test_the_next_time_of_a_schedule_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it took a step for each minute of the day that was over."""
    steps: list[None] = []

    class Counted(datetime):
        def __new__(cls, *args: Any, **options: Any) -> Counted:
            steps.append(None)
            return super().__new__(cls, *args, **options)

    minutely = Cron.parse("* * * * *", "UTC")
    monkeypatch.setattr(cron, "datetime", Counted)
    late = 1_800_057_540.0  # one minute before midnight
    assert minutely.next(late) == late + 60
    early = late - 86_400 + 120
    assert minutely.previous(early) == early
    assert len(steps) < 200
