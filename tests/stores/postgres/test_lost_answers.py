"""The line is cut at every command of every write, on either side of it.

Whatever the point, the store finds out what happened, or does it: the caller gets the answer that
it would have got, and the database holds it once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from jobqueue.core.errors import OutcomeUnknown
from jobqueue.core.job import SubmitStatus, Transition
from jobqueue.core.lifecycle import Move, Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, JobFilter
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.cutting import Cut
from tests.stores.driver import accept, new, spec, worker
from tests.stores.postgres.proxy import Proxy

pytestmark = [pytest.mark.req("jq:NFR-005"), pytest.mark.parametrize("few", [16, 1])]

SIDES = pytest.mark.parametrize("side", list(Cut))


async def at_every_command(proxy: Proxy, side: Cut, once: Callable[[int], Awaitable[None]]) -> None:
    """Do it with the line cut at the first command, then at the second, until none is left."""
    command = 0
    while True:
        command += 1
        proxy.arm(side, command)
        before = proxy.cuts
        await once(command)
        proxy.disarm()
        if proxy.cuts == before:
            assert command > 1, "the line was never cut"
            return


async def held_one(store: PostgresStore) -> tuple[int, int, str]:
    (job_id,) = await accept(store)
    (got,) = await store.jobs.claim([Claim(("q",), ["w"])])
    assert got.id == job_id
    return got.seq, got.lease, job_id


@SIDES
async def test_a_submit_is_written_once(cuttable, proxy, db, side):
    await cuttable.queues.create(Queue(name="bounded", capacity=100_000))
    submitted = 0

    async def once(command: int) -> None:
        nonlocal submitted
        jobs = new(
            spec(b"plain"),
            spec(b"bounded", queue="bounded"),
            spec(b"keyed", key=f"key {command}"),
            spec(b"keyed", key=f"key {command}"),
            spec(b"other", key=f"key {command}"),
            spec(b"nowhere", queue="nowhere"),
        )
        results = (await cuttable.jobs.submit(jobs)).results
        accepted, duplicate, refused = (
            SubmitStatus.ACCEPTED,
            SubmitStatus.DUPLICATE,
            SubmitStatus.REFUSED,
        )
        assert [one.status for one in results] == [
            *[accepted] * 3, duplicate, refused, refused,
        ]  # fmt: skip
        submitted += 3

    await at_every_command(proxy, side, once)
    assert await db.fetchval("SELECT count(*) FROM job_record") == submitted
    assert await db.fetchval("SELECT count(DISTINCT id) FROM job_record") == submitted
    depths = [stats.depth[State.PENDING] for stats in await cuttable.queues.stats()]
    assert sum(depths) == submitted


@SIDES
async def test_a_claim_is_handed_out_once_and_at_once(cuttable, proxy, side):
    """Nobody waits for the assignment timeout of a claim that the store had no answer to."""

    async def once(command: int) -> None:
        (job_id,) = await accept(cuttable)
        assert [one.id for one in await cuttable.jobs.claim([Claim(("q",), ["w"])])] == [job_id]
        job = await cuttable.reads.get(job_id)
        assert job is not None
        assert (job.state, job.attempt) == (State.ASSIGNED, 1)

    await at_every_command(proxy, side, once)


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
        "drop": (
            Transition(seq, Move.DROP_WITH_QUEUE), State.DEAD_LETTERED, Reason.QUEUE_DELETED,
        ),
    }  # fmt: skip


@SIDES
@pytest.mark.parametrize("name", list(moves(0, 0)))
async def test_a_move_is_made_once_and_confirmed(cuttable, proxy, side, name):
    async def once(command: int) -> None:
        seq, lease, job_id = await held_one(cuttable)
        asked, state, reason = moves(seq, lease)[name]
        (outcome,) = (await cuttable.jobs.apply([asked])).outcomes
        assert outcome.applied, outcome
        assert (outcome.state, outcome.reason) == (state, reason)
        job = await cuttable.reads.get(job_id)
        assert job is not None
        assert (job.state, job.reason) == (state, reason)
        if state is State.PENDING:  # found at once, not at the next full look
            (again,) = await cuttable.jobs.claim([Claim(("q",), ["w"])])
            assert again.id == job_id

    await at_every_command(proxy, side, once)


@SIDES
async def test_a_retry_by_hand_is_made_once_and_confirmed(cuttable, proxy, side):
    async def once(command: int) -> None:
        seq, lease, job_id = await held_one(cuttable)
        await cuttable.jobs.apply([Transition.failed(seq, lease, "boom", retryable=False)])
        (outcome,) = (await cuttable.jobs.apply([Transition(seq, Move.RETRY_BY_HAND)])).outcomes
        assert outcome.applied, outcome
        (again,) = await cuttable.jobs.claim([Claim(("q",), ["w"])])
        assert (again.id, again.attempt) == (job_id, 2)

    await at_every_command(proxy, side, once)


@SIDES
async def test_a_batch_of_everything_is_applied_once(cuttable, proxy, side):
    """Parts of a batch are committed one after the other: each has its own answer."""

    async def once(command: int) -> None:
        held = [await held_one(cuttable) for _ in range(3)]
        (a, a_lease, _), (b, b_lease, _), (c, c_lease, _) = held
        outcomes = (
            await cuttable.jobs.apply(
                [
                    Transition.started(a, a_lease),
                    Transition.succeeded(b, b_lease, None, 0.5),
                    Transition.failed(c, c_lease, "boom"),
                    Transition.succeeded(a, a_lease, None, 0.5),
                    Transition.succeeded(b, b_lease + 1, None, 0.5),
                ]
            )
        ).outcomes
        assert [one.applied for one in outcomes] == [True, True, True, True, False]
        states = [(await cuttable.reads.get(job_id)).state for _, _, job_id in held]
        assert states == [State.DONE, State.DONE, State.FAILED]

    await at_every_command(proxy, side, once)


@pytest.mark.parametrize("name", ["create queue", "delete queue", "delete job"])
async def test_what_cannot_be_found_out_is_said_to_be_unknown(cuttable, proxy, name):
    await cuttable.queues.create(Queue(name="empty"))
    seq, lease, job_id = await held_one(cuttable)
    await cuttable.jobs.apply([Transition.succeeded(seq, lease, None, 0.5)])
    call = {
        "create queue": lambda: cuttable.queues.create(Queue(name="new")),
        "delete queue": lambda: cuttable.queues.delete("empty"),
        "delete job": lambda: cuttable.upkeep.delete_job(job_id),
    }[name]
    proxy.arm(Cut.AFTER, 1)
    with pytest.raises(OutcomeUnknown):
        await call()
    assert proxy.cuts == 1


@SIDES
async def test_the_rest_is_repeated(cuttable, proxy, side):
    async def once(command: int) -> None:
        seq, lease, _ = await held_one(cuttable)
        await cuttable.jobs.apply([Transition.started(seq, lease)])
        assert (await cuttable.jobs.request_cancel(seq)).cancel_requested
        assert await cuttable.queues.pause("q", True)
        assert await cuttable.queues.pause("q", False)
        changed = await cuttable.queues.update("q", {"capacity": 1_000 + command})
        assert changed.capacity == 1_000 + command
        term = await cuttable.leadership.lead(7, 60.0)
        assert term is not None
        await cuttable.workers.retire_silent(3_600.0, term)
        await cuttable.upkeep.prune_done(0.0, 10, term)
        await cuttable.workers.register(worker("v"))
        assert await cuttable.workers.retire("v", 1)
        await cuttable.ping()
        await cuttable.upkeep.due(100)
        await cuttable.leadership.resign(term)

    await at_every_command(proxy, side, once)
    assert await cuttable.reads.list_jobs(JobFilter(states=(State.RUNNING,), limit=100))
