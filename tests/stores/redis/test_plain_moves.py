"""The plain start and success are made by a script; ``core.decide`` is what they must equal."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Event, Job, Outcome, Refusal, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Claim
from jobqueue.stores.redis import applying
from tests.stores.driver import new, spec

MOVES = ("start", "succeed", "start and succeed")
RAN = (None, 0.0, 0.25, 7.5)
SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"ttl": 60.0},
    {"timeout": 30.0},
    {"ttl": 60.0, "timeout": 30.0, "priority": 9, "labels": {"a": "b"}, "key": "k"},
)


async def _made(
    store, clock: ManualClock, move: str, ran_for: float | None, fields: dict, started: bool
) -> tuple[list[Outcome], Job, list[Event], list[object]]:
    (result,) = (await store.jobs.submit(new(spec(b"p", **fields)))).results
    (got,) = await store.jobs.claim([Claim(("q",), ["w"])])
    clock.advance(1.25)
    if started:
        await store.jobs.apply([Transition.started(got.seq, got.lease)])
        clock.advance(2.5)
    start = Transition.started(got.seq, got.lease)
    succeed = Transition.succeeded(got.seq, got.lease, b"\x00r", ran_for)
    asked = {"start": [start], "succeed": [succeed], "start and succeed": [start, succeed]}[move]
    outcomes = (await store.jobs.apply(asked)).outcomes
    job = await store.reads.get(result.job_id)
    due = await store.upkeep.due(10)
    stats = (await store.queues.stats("q"))[0]
    figures = [due.next_at, stats.depth, stats.succeeded, stats.failed, stats.run_seconds]
    return outcomes, job, await store.reads.history(job.id), figures


def _without_names(outcomes: list[Outcome], job: Job, events: list[Event]) -> list[object]:
    for outcome in outcomes:
        outcome.job_id, outcome.lease = "", outcome.lease and 1
    job.id = ""
    for event in events:
        event.job_id = ""
    return [outcomes, job, events]


@pytest.mark.parametrize(
    ("move", "ran_for", "fields", "started"),
    list(itertools.product(MOVES, RAN, SPECS, (False, True))),
)
async def test_a_script_does_what_decide_does(
    open_store, monkeypatch, move, ran_for, fields, started
):
    shown = []
    for plain in (True, False):
        if not plain:
            monkeypatch.setattr(applying, "_plain", lambda asked: False)
        clock = ManualClock()
        store = await open_store(clock=clock, prefix=f"{{{plain}}}:")
        outcomes, job, events, figures = await _made(store, clock, move, ran_for, fields, started)
        shown.append([*_without_names(outcomes, job, events), figures])
    assert shown[0] == shown[1]


async def test_the_plain_way_is_one_script(open_store, monkeypatch):
    store = await open_store()
    await store.jobs.submit(new(*(spec() for _ in range(20))))
    got = await store.jobs.claim([Claim(("q",), ["w"] * 20)])
    asked: list[str] = []
    write = store._runner.write

    async def counted(name, what):
        asked.append(name)
        return await write(name, what)

    monkeypatch.setattr(store._runner, "write", counted)
    outcomes = (
        await store.jobs.apply([Transition.succeeded(one.seq, one.lease, b"r") for one in got])
    ).outcomes
    assert all(outcome.applied for outcome in outcomes)
    assert asked == ["apply"]


async def test_moves_of_one_job_are_told_in_their_order(open_store):
    """One that has to be decided holds up those behind it."""
    store = await open_store()
    await store.jobs.submit(new(spec()))
    (got,) = await store.jobs.claim([Claim(("q",), ["w"])])
    outcomes = (
        await store.jobs.apply(
            [
                Transition.succeeded(got.seq, got.lease + 1, b"wrong"),
                Transition.succeeded(got.seq, got.lease, b"right"),
                Transition.succeeded(got.seq, got.lease, b"late"),
            ]
        )
    ).outcomes
    assert [(one.refusal, one.state) for one in outcomes] == [
        (Refusal.STALE_LEASE, State.ASSIGNED),
        (None, State.DONE),
        (Refusal.STALE_LEASE, State.DONE),
    ]
    assert (await store.reads.get(got.id)).result == b"right"
