"""The line is cut at every script of every write, on either side of it.

Whatever the point, the caller gets the answer that it would have got, and Redis holds it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobqueue.core.errors import OutcomeUnknown, Unavailable
from jobqueue.core.job import Held, SubmitStatus, Transition, WorkerStatus
from jobqueue.core.lifecycle import Move, Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim
from jobqueue.stores.redis.store import RedisStore
from tests.stores.cutting import Cut
from tests.stores.driver import accept, new, spec, worker
from tests.stores.redis.proxy import Proxy

SIDES = pytest.mark.parametrize("side", list(Cut))
CLAIM = [Claim(("q",), ["w"])]


async def at_every_script(proxy: Proxy, side: Cut, once: Callable[[int], Awaitable[None]]) -> None:
    """Do it with the line cut at the first script, then at the second, until none is left."""
    script = 0
    while True:
        script += 1
        proxy.arm(side, script)
        before = proxy.cuts
        await once(script)
        proxy.disarm()
        if proxy.cuts == before:
            assert script > 1, "the line was never cut"
            return


async def held_one(store: RedisStore) -> tuple[int, int, str]:
    (job_id,) = await accept(store)
    (got,) = await store.jobs.claim(CLAIM)
    assert got.id == job_id
    return got.seq, got.lease, job_id


@SIDES
async def test_a_submit_is_written_once(cuttable, proxy, client, side):
    submitted = 0

    async def once(script: int) -> None:
        nonlocal submitted
        jobs = new(
            spec(b"plain"),
            spec(b"keyed", key=f"key {script}"),
            spec(b"keyed", key=f"key {script}"),
            spec(b"other", key=f"key {script}"),
            spec(b"nowhere", queue="nowhere"),
        )
        submission = await cuttable.jobs.submit(jobs, [Claim(("q",), ["w"])])
        accepted, duplicate, refused = (
            SubmitStatus.ACCEPTED,
            SubmitStatus.DUPLICATE,
            SubmitStatus.REFUSED,
        )
        assert [one.status for one in submission.results] == [
            accepted, accepted, duplicate, refused, refused,
        ]  # fmt: skip
        assert len(submission.assigned) == 1
        assert submission.assigned[0].payload in (b"plain", b"keyed")
        submitted += 2

    await at_every_script(proxy, side, once)
    assert await client.zcard("{jq}:jobs") == submitted
    assert len(await client.keys("{jq}:job:*")) == submitted
    assert len(await cuttable.stream.events_after(BEGINNING, 1_000)) == submitted + len(
        await cuttable.workers.held()
    )


@SIDES
async def test_a_claim_is_handed_out_once_and_at_once(cuttable, proxy, side):
    async def once(script: int) -> None:
        (job_id,) = await accept(cuttable)
        (got,) = await cuttable.jobs.claim(CLAIM)
        assert got.id == job_id
        assert [held.lease for held in await cuttable.workers.held("w")] == [got.lease]
        (done,) = (
            await cuttable.jobs.apply([Transition.succeeded(got.seq, got.lease, b"r")])
        ).outcomes
        assert done.applied

    await at_every_script(proxy, side, once)


def moves(seq: int, lease: int) -> dict[str, tuple[Transition, State, Reason]]:
    """Each move of a held job, and where it leads."""
    return {
        "start": (Transition.started(seq, lease), State.RUNNING, Reason.STARTED),
        "succeed": (Transition.succeeded(seq, lease, b"r", 0.5), State.DONE, Reason.SUCCEEDED),
        "fail": (Transition.failed(seq, lease, "boom"), State.FAILED, Reason.HANDLER_FAILED),
        "hand back": (
            Transition(seq, Move.HAND_BACK, lease), State.PENDING, Reason.HANDED_BACK,
        ),
        "cancel": (Transition(seq, Move.CANCEL), State.DEAD_LETTERED, Reason.CANCELLED),
    }  # fmt: skip


@SIDES
@pytest.mark.parametrize("name", list(moves(0, 0)))
async def test_a_move_is_made_once_and_confirmed(cuttable, proxy, side, name):
    async def once(script: int) -> None:
        seq, lease, job_id = await held_one(cuttable)
        asked, state, reason = moves(seq, lease)[name]
        (outcome,) = (await cuttable.jobs.apply([asked])).outcomes
        assert outcome.applied, outcome
        assert (outcome.state, outcome.reason, outcome.lease) == (state, reason, lease)
        job = await cuttable.reads.get(job_id)
        assert (job.state, job.reason) == (state, reason)
        assert [event.version for event in await cuttable.reads.history(job_id)] == list(
            range(1, job.version + 1)
        )
        if state is State.PENDING:
            assert [one.id for one in await cuttable.jobs.claim(CLAIM)] == [job_id]

    await at_every_script(proxy, side, once)


@SIDES
async def test_a_batch_of_everything_is_applied_once(cuttable, proxy, side):
    async def once(script: int) -> None:
        (a, a_lease, _), (b, b_lease, _), (c, c_lease, _) = [
            await held_one(cuttable) for _ in range(3)
        ]
        application = await cuttable.jobs.apply(
            [
                Transition.started(a, a_lease),
                Transition.succeeded(b, b_lease, None, 0.5),
                Transition.failed(c, c_lease, "boom", retryable=False),
                Transition.succeeded(a, a_lease, None, 0.5),
                Transition.succeeded(b, b_lease + 1, None, 0.5),
                Transition.retried_by_hand(c),
            ],
            CLAIM,
        )
        applied = [one.applied for one in application.outcomes]
        assert applied == [True, True, True, True, False, True]
        (again,) = application.assigned
        assert (again.seq, again.attempt) == (c, 2)
        await cuttable.jobs.apply([Transition.succeeded(c, again.lease, None)])

    await at_every_script(proxy, side, once)
    (stats,) = await cuttable.queues.stats("q")
    assert stats.depth[State.DONE] == stats.succeeded > 0
    assert stats.failed == stats.succeeded // 3


@SIDES
async def test_what_tells_yes_from_no_tells_the_truth(cuttable, proxy, side):
    """A repeated creation would be refused, a repeated removal would find nothing."""

    async def once(script: int) -> None:
        name = f"queue-{script}"
        assert await cuttable.queues.create(Queue(name=name))
        assert not await cuttable.queues.create(Queue(name=name))
        assert await cuttable.queues.delete(name) == 0
        seq, lease, job_id = await held_one(cuttable)
        await cuttable.jobs.apply([Transition.started(seq, lease)])
        assert (await cuttable.jobs.request_cancel(seq)).cancel_requested
        await cuttable.workers.register(worker("w", 2 * script))
        lost = await cuttable.workers.register(worker("w", 2 * script + 1))
        assert lost == [Held(seq, lease, "w", State.RUNNING, True)]
        await cuttable.jobs.apply([Transition.worker_lost(seq, lease, "restarted")])
        assert await cuttable.upkeep.delete_job(job_id) is State.DEAD_LETTERED
        assert await cuttable.workers.set_status("w", WorkerStatus.OFFLINE)
        assert await cuttable.workers.forget("w")
        await cuttable.workers.register(worker("v", 1))
        assert await cuttable.workers.retire("v", 1)
        await cuttable.workers.register(worker("quiet", 1))
        term = await cuttable.leadership.lead(script, 60.0)
        assert term is not None
        assert await cuttable.workers.retire_silent(-1.0, term) == ["quiet"]
        assert await cuttable.workers.forget("quiet")
        seq, lease, _ = await held_one(cuttable)
        await cuttable.jobs.apply([Transition.succeeded(seq, lease, None)])
        assert await cuttable.upkeep.prune_done(2e9, 10, term) == 1
        await cuttable.leadership.resign(term)
        assert await cuttable.leadership.lead(-script, 60.0) != term
        assert (await cuttable.upkeep.due(10)).transitions == []
        await cuttable.leadership.resign(await cuttable.leadership.lead(-script, 60.0))

    await at_every_script(proxy, side, once)


async def test_a_heartbeat_survives_a_cut_line(cuttable, proxy):
    await cuttable.workers.register(worker())
    for side in Cut:
        proxy.arm(side, 1)
        assert (await asyncio.to_thread(cuttable.workers.pulse, "w", 1, [])).known
    assert proxy.cuts == 2


async def test_a_call_that_was_given_up_does_not_come_after_a_later_one(cuttable, client):
    """A connection that was given up may still carry a command: it must find its lane moved on."""
    runner = cuttable._runner
    asked: tuple[Any, ...] = ("late", ["name", "late", "max_retries", 1, "capacity", 0], [])
    await cuttable.queues.create(Queue(name="first"))
    lanes = await client.keys("{jq}:lane:*")
    (lane,) = [key for key in lanes if await client.getrange(key, 0, 1) == "2:"]
    found, *rest = runner.arguments("create_queue", asked, lane.removeprefix("{jq}:lane:"), 1)
    with pytest.raises(Exception, match="OVERTAKEN"):
        await client.eval(found.text.decode(), *rest)
    assert await cuttable.queues.stats("late") == []


async def test_a_write_into_the_dark_is_unknown_and_a_read_unavailable(proxy, open_store):
    store = await open_store(proxy.url, patience=0.5)
    proxy.deaf = True
    with pytest.raises(OutcomeUnknown, match="Redis"):
        await store.jobs.submit(new(spec()))
    with pytest.raises(Unavailable, match="Redis"):
        await store.reads.get("00000000-0000-4000-8000-000000000000")
    proxy.deaf = False
    assert len(await accept(store)) == 1
