"""Unique jobs through every face, on every deployment: two servers at once leave exactly one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from jobqueue.core.lifecycle import State
from tests.api.public.conftest import ConnectHand
from tests.api.public.face import PublicFace, Refused, Spec
from tests.api.public.test_bad_input import refusal


def unique(payload: bytes = b"1", *, delay: float | None = None, **how: Any) -> Spec:
    return Spec(payload=payload, delay=delay, unique={"key": "k", **how})


def debounced(payload: bytes, delay: float | None = None) -> Spec:
    return unique(payload, delay=delay, scope="waiting", on_conflict="replace")


async def test_an_equal_job_is_not_submitted_until_the_first_has_ended(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    first = await face.submit(unique(b"1"))
    assert (first.duplicate, first.existing) == (False, False)
    shown = {"key": "k", "scope": "unfinished", "period": None, "on_conflict": "existing"}
    assert (await face.get(first.job_id)).unique == shown
    assert (await face.get((await face.submit(Spec())).job_id)).unique is None
    hand = await connect_hand(slots=5)
    job = next(one for one in [await hand.take(), await hand.take()] if one.id == first.job_id)
    for state in (State.ASSIGNED, State.RUNNING):
        if state is State.RUNNING:
            await hand.start(job)
        again = await face.submit(unique(b"2"))
        assert (again.job_id, again.duplicate, again.existing) == (first.job_id, False, True), state
    await hand.succeed(job)
    assert (await face.wait(first.job_id, 20)).state == "DONE"
    later = await face.submit(unique(b"3"))
    assert later.job_id != first.job_id
    assert not later.existing
    within = await face.submit(unique(b"4", period=3_600.0))
    assert (within.job_id, within.existing) == (later.job_id, True)


async def test_a_refusal_names_the_job_that_has_the_key(face: PublicFace) -> None:
    first = await face.submit(unique())
    refused = await refusal(face.submit(unique(on_conflict="reject")))
    assert (refused.code, refused.job_id) == ("NOT_UNIQUE", first.job_id)
    assert refused.message == f"unique.key: 'k' belongs to job {first.job_id}"
    assert (await face.cancel(first.job_id)).state == "DEAD_LETTERED"
    assert not (await face.submit(unique(on_conflict="reject"))).existing


async def test_a_batch_says_of_each_job_what_came_of_it(face: PublicFace) -> None:
    first, plain, again, refused = await face.submit_batch(
        [unique(b"1"), Spec(), unique(b"2"), unique(b"3", on_conflict="reject")]
    )
    assert not isinstance(first, Refused)
    assert not isinstance(plain, Refused)
    assert not isinstance(again, Refused)
    assert (first.existing, plain.existing) == (False, False)
    assert (again.job_id, again.existing, again.duplicate) == (first.job_id, True, False)
    assert isinstance(refused, Refused)
    assert refused.code == "NOT_UNIQUE"
    assert len((await face.list()).jobs) == 2


async def test_a_waiting_job_gives_its_place_to_the_later_one(
    face: PublicFace, connect_hand: ConnectHand
) -> None:
    jobs = [await face.submit(debounced(b"%d" % n, delay=3_600.0)) for n in range(3)]
    jobs.append(await face.submit(debounced(b"3")))
    for earlier, later in pairwise(jobs):
        seen = await face.wait(earlier.job_id, 20)
        assert (seen.state, seen.reason) == ("DEAD_LETTERED", "SUPERSEDED")
        assert seen.error == f"superseded by job {later.job_id}"
        assert (await face.history(earlier.job_id))[-1].reason == "SUPERSEDED"
    hand = await connect_hand(slots=5)
    assert (await hand.take()).payload == b"3"
    assert hand.jobs.empty()


async def test_of_equal_jobs_at_once_one_is_there(face: PublicFace) -> None:
    """Each call goes to the next server of the deployment."""
    answers = await asyncio.gather(*(face.submit(unique(b"%d" % n)) for n in range(20)))
    assert len({answer.job_id for answer in answers}) == 1
    assert sorted(answer.existing for answer in answers) == [False] + [True] * 19
    assert len((await face.list()).jobs) == 1
    await asyncio.gather(*(face.submit(debounced(b"%d" % n)) for n in range(20)))
    assert len((await face.list(states=["PENDING"])).jobs) == 1
