"""Each situation in which a job does not run is set up, and explained by its true cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.errors import NotFound, Unavailable
from jobqueue.core.explain import MOST_NAMED, Cause, Explained, deaths_of, span
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import Assignment, Transition, WorkerInfo
from jobqueue.core.queue import QueueSpec, QueueUpdate
from jobqueue.core.store import Rules, Store, StoreAway
from jobqueue.stores.redis.store import RedisStore
from tests.engine.rig import Rig, Unreliable, Worker, until
from tests.stores.every import NEED_SERVERS, STORES, Places

OPEN = OpenBreaker("pay", 10, 1e10, 0)


class StoreRig(Rig):
    """An engine on any store, with a clock that stands still."""

    def __init__(self, name: str, places: Places, partitions: int = 0) -> None:
        def wrap(memory: Store) -> Unreliable:
            if name == "memory":
                return Unreliable(memory)
            if name == "redis" and partitions:
                made = RedisStore(
                    **places.new(), rules=Rules(), clock=self.clock, partitions=partitions
                )
                return Unreliable(made)
            return Unreliable(STORES[name](places.new, Rules(), self.clock))

        super().__init__(store=wrap)

    async def causes(self, job_id: str) -> list[Explained]:
        answer = await self.engine.explain(job_id)
        assert (answer.job_id, answer.at) == (job_id, self.clock.now())
        job = await self.engine.get(job_id)
        assert answer.state is job.state
        if job.hint:  # it is the text of a cause
            assert any(cause.text.startswith(job.hint) for cause in answer.causes)
        return answer.causes

    async def dies_with(self, assignment: Assignment) -> None:
        """The worker of a job dies, and the job is retried."""
        lost = Transition.worker_lost(assignment.seq, assignment.lease, "it died")
        assert (await self.store.jobs.apply([lost])).outcomes[0].applied
        self.clock.advance(3_600)
        await self.engine.sweep()
        self.store.workers.pulse(assignment.worker_id, 1, [])  # it is up again


OpenStore = Callable[..., Awaitable[StoreRig]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.core.waiting.RECENT", -1.0)


@pytest_asyncio.fixture
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    rigs: list[StoreRig] = []
    places: list[Places] = []

    async def make(name: str, partitions: int = 0) -> StoreRig:
        places.append(Places(request, name, tmp_path))
        rigs.append(StoreRig(name, places[-1], partitions))
        await rigs[-1].engine.start()
        return rigs[-1]

    yield make
    for rig in rigs:
        await rig.engine.stop()
    for place in places:
        place.close()


def info(name: str, **fields: Any) -> WorkerInfo:
    return WorkerInfo(
        id=name, incarnation=1, hostname="h", pid=1, concurrency=4, queues=("default",), **fields
    )


Situation = Callable[[StoreRig], Awaitable[tuple[str, Any]]]
"""Sets a situation up, and returns the job's id and facts that the cause must have."""


async def done(rig: StoreRig) -> tuple[str, Any]:
    worker, one = await rig.running()
    await worker.succeed(one)
    return one.id, {"reason": "SUCCEEDED"}


async def dead(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(slots=1)
    job_id = await rig.submit(max_retries=0)
    await worker.fail(await worker.gets_one(), "no such host")
    return job_id, {"reason": "RETRIES_EXHAUSTED", "error": "no such host"}


async def running(rig: StoreRig) -> tuple[str, Any]:
    _, one = await rig.running()
    return one.id, {"worker_id": "w", "attempt": 1}


async def cancel_requested(rig: StoreRig) -> tuple[str, Any]:
    _, one = await rig.running()
    await rig.engine.cancel(one.id)
    return one.id, {"worker_id": "w"}


async def handed_over(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(slots=1)
    job_id = await rig.submit()
    await worker.gets_one()
    return job_id, {"worker_id": "w", "attempt": 1}


async def silent(rig: StoreRig) -> tuple[str, Any]:
    _, one = await rig.running()
    rig.clock.advance(20)
    return one.id, {"worker_id": "w", "timeout": 30.0}


async def backoff(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(slots=1)
    job_id = await rig.submit(max_retries=3)
    await worker.fail(await worker.gets_one(), "timeout")
    job = await rig.engine.get(job_id)
    facts = {"retry": 1, "max_retries": 3, "error": "timeout"}
    return job_id, {**facts, "next_retry_at": pytest.approx(job.next_retry_at)}


async def retry_overdue(rig: StoreRig) -> tuple[str, Any]:
    job_id, facts = await backoff(rig)
    rig.clock.advance(3_600)
    return job_id, facts


async def not_due(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker(slots=1)
    job_id = await rig.submit(delay=60)
    return job_id, {"run_at": pytest.approx(rig.clock.now() + 60)}


async def ttl_over(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker()
    job_id = await rig.submit(ttl=60.0)
    rig.clock.advance(61)
    return job_id, {"ttl": 60.0}


async def queue_paused(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker(slots=1)
    await rig.engine.pause_queue("default")
    return await rig.submit(), {"queue": "default"}


async def no_worker_for_queue(rig: StoreRig) -> tuple[str, Any]:
    await rig.engine.create_queue(QueueSpec("mail"))
    await rig.worker(slots=1)
    return await rig.submit(queue="mail", type="send"), {"queue": "mail", "type": "send"}


async def no_worker_for_type(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker(slots=1, types=frozenset({"known"}))
    return await rig.submit(type="send"), {"queue": "default", "type": "send"}


async def draining(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker(slots=1)
    await rig.engine.drain_worker("w")
    return await rig.submit(), {"workers_in_all": 1}


async def stopping(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker(slots=1)
    await rig.engine.shutdown_worker("w")
    return await rig.submit(), {"workers_in_all": 1}


async def offline(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker()
    await until(lambda: rig.engine._leads_under() is not None)
    rig.clock.advance(5)  # the term is still in force
    assert await rig.store.workers.retire_silent(1.0, rig.engine._leads_under()) == ["w"]
    return await rig.submit(), {"workers_in_all": 1}


async def pool_steps_aside(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker("pool", fallback=True, types=frozenset({"add", "echo"}))
    await rig.worker("app", slots=1, types=frozenset({"add"}))
    return await rig.submit(type="echo"), {"workers_in_all": 1}


async def breaker_open(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(slots=1, types=frozenset({"pay", "other"}))
    worker.link.set_breakers([OPEN])
    await rig.store.workers.set_breakers("w", 1, [OPEN])
    facts = {"type": "pay", "failures": 10, "next_trial_at": 1e10, "tries_one": False}
    return await rig.submit(type="pay"), facts


async def max_running(rig: StoreRig) -> tuple[str, Any]:
    await rig.engine.update_queue("default", QueueUpdate(max_running=1))
    await rig.running()
    return await rig.submit(), {"queue": "default", "max_running": 1, "running": 1}


async def rate(rig: StoreRig) -> tuple[str, Any]:
    await rig.engine.update_queue("default", QueueUpdate(rate=1, rate_period=3_600))
    worker = await rig.worker(slots=2)
    await rig.submit()
    await worker.gets_one()
    return await rig.submit(), {"rate": 1, "opens_in": pytest.approx(3_600)}


async def key_max_running(rig: StoreRig) -> tuple[str, Any]:
    await rig.engine.update_queue("default", QueueUpdate(key_max_running=1))
    await rig.running(concurrency_key="tenant:1")
    facts = {"queue": "default", "key": "tenant:1", "key_max_running": 1, "running": 1}
    return await rig.submit(concurrency_key="tenant:1"), facts


async def key_rate(rig: StoreRig) -> tuple[str, Any]:
    await rig.engine.update_queue("default", QueueUpdate(key_rate=1, key_rate_period=3_600))
    worker = await rig.worker(slots=2)
    await rig.submit(concurrency_key="tenant:1")
    await worker.gets_one()
    facts = {"key": "tenant:1", "key_rate": 1, "opens_in": pytest.approx(3_600)}
    return await rig.submit(concurrency_key="tenant:1"), facts


async def slots_busy(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(slots=2, concurrency=2, types=frozenset({"a", "b"}))
    first = await rig.submit(type="a")
    await worker.start(await worker.gets_one())
    rig.clock.advance(1)
    second = await rig.submit(type="b")
    await worker.gets_one()
    await rig.worker("other", slots=1, types=frozenset({"c"}))
    job_id = await rig.submit(type="a")
    held = (await rig.causes(job_id))[0].facts["held_by"]
    assert [(one["job_id"], one["type"], one["worker_id"]) for one in held] == [
        (first, "a", "w"),
        (second, "b", "w"),
    ]
    return job_id, {"slots": 2, "running": 2, "workers": ["w"], "workers_in_all": 1}


async def slots_overrun(rig: StoreRig) -> tuple[str, Any]:
    await rig.worker(concurrency=1)
    rig.store.workers.pulse("w", 1, [], overrun=1)
    await asyncio.sleep(0)
    return await rig.submit(), {"slots": 1, "running": 0, "overrun": 1}


async def twice_deadly(rig: StoreRig, worker: Worker) -> str:
    """A job under which two workers have died."""
    job_id = await rig.submit(max_retries=9)
    for _ in range(2):
        worker.link.grant(1)
        await rig.dies_with(await worker.gets_one())
    return job_id


async def suspect_waits(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(concurrency=4)
    job_id = await twice_deadly(rig, worker)
    worker.link.grant(1)
    await worker.gets_one()
    return job_id, {"deaths": 2, "worker_id": "w", "other_jobs": 0}


async def suspect_first(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(concurrency=4)
    suspect = await twice_deadly(rig, worker)
    worker.link.grant(1)
    await worker.start(await worker.gets_one())
    return await rig.submit(), {"suspect": suspect, "deaths": 2, "worker_id": "w"}


async def slots_withdrawn(rig: StoreRig) -> tuple[str, Any]:
    worker = await rig.worker(slots=3)
    await worker.link.drain(pause=True)
    return await rig.submit(), {"workers": ["w"]}


async def starting(rig: StoreRig) -> tuple[str, Any]:
    rig.store.fail["jobs.submit"] = []
    rig.store.fail["jobs.claim"] = [Unavailable("away")] * 1_000
    await rig.worker(slots=1)
    await rig.engine.pause_queue("default")
    job_id = await rig.submit()
    await rig.store.queues.pause("default", False)
    return job_id, {"workers": ["w"]}


SITUATIONS: list[tuple[Cause, Situation, bool]] = [  # True: stores have code of their own for it
    (Cause.DONE, done, False),
    (Cause.DEAD_LETTERED, dead, False),
    (Cause.RUNNING, running, False),
    (Cause.CANCEL_REQUESTED, cancel_requested, False),
    (Cause.HANDED_OVER, handed_over, False),
    (Cause.WORKER_SILENT, silent, False),
    (Cause.BACKOFF, backoff, False),
    (Cause.RETRY_OVERDUE, retry_overdue, False),
    (Cause.NOT_DUE, not_due, False),
    (Cause.TTL_OVER, ttl_over, False),
    (Cause.QUEUE_PAUSED, queue_paused, False),
    (Cause.NO_WORKER_FOR_QUEUE, no_worker_for_queue, False),
    (Cause.NO_WORKER_FOR_TYPE, no_worker_for_type, True),
    (Cause.WORKERS_DRAINING, draining, False),
    (Cause.WORKERS_STOPPING, stopping, False),
    (Cause.WORKERS_OFFLINE, offline, True),
    (Cause.POOL_STEPS_ASIDE, pool_steps_aside, True),
    (Cause.BREAKER_OPEN, breaker_open, True),
    (Cause.MAX_RUNNING, max_running, False),
    (Cause.RATE, rate, True),
    (Cause.KEY_MAX_RUNNING, key_max_running, False),
    (Cause.KEY_RATE, key_rate, True),
    (Cause.SLOTS_BUSY, slots_busy, True),
    (Cause.SLOTS_OVERRUN, slots_overrun, True),
    (Cause.RUNS_ALONE, suspect_waits, True),
    (Cause.SUSPECT_FIRST, suspect_first, False),
    (Cause.SLOTS_WITHDRAWN, slots_withdrawn, False),
    (Cause.STARTING, starting, False),
]
CASES = [
    pytest.param(
        store,
        cause,
        situation,
        id=f"{situation.__name__}-{store}",
        marks=[pytest.mark.integration] if store in NEED_SERVERS else [],
    )
    for cause, situation, differs in SITUATIONS
    for store in (["memory", "sqlite", "postgres", "redis"] if differs else ["memory"])
]


@pytest.mark.parametrize(("store", "cause", "situation"), CASES)
async def test_the_true_cause_is_told(
    any_store: OpenStore, store: str, cause: Cause, situation: Situation
):
    rig = await any_store(store)
    job_id, facts = await situation(rig)
    found = (await rig.causes(job_id))[0]
    assert found.code is cause
    assert {name: found.facts[name] for name in facts} == facts
    assert found.text
    rig.store.fail.clear()


async def test_causes_that_hold_at_the_same_time_are_all_told(
    any_store: OpenStore,
):
    rig = await any_store("memory")
    await rig.engine.pause_queue("default")
    job_id = await rig.submit(type="send", delay=60)
    found = await rig.causes(job_id)
    assert [one.code for one in found] == [
        Cause.NOT_DUE,
        Cause.QUEUE_PAUSED,
        Cause.NO_WORKER_FOR_QUEUE,
    ]
    assert found[1].advice == "jq-ctl queue resume default"


async def test_a_leader_that_is_away_is_told_beside_a_silent_worker(
    any_store: OpenStore,
):
    rig = await any_store("memory")
    _, one = await rig.running()
    await until(lambda: rig.engine._leads_under() is not None)
    rig.store.fail["leadership.lead"] = [Unavailable("away")] * 1_000
    rig.clock.advance(20)  # the term has ended
    found = await rig.causes(one.id)
    assert [cause.code for cause in found] == [
        Cause.WORKER_SILENT,
        Cause.NO_LEADER,
        Cause.RUNNING,
    ]
    rig.store.fail.clear()


@pytest.mark.integration
async def test_workers_that_a_leader_serves_wait_for_it(
    any_store: OpenStore,
):
    rig = await any_store("redis", 4)
    dispatch = rig.store.dispatch
    assert dispatch is not None
    await dispatch.workers.register(info("far", types=None))
    await dispatch.workers.partition_of("far", 1)
    rig.store.fail["jobs.claim"] = [Unavailable("no claims here")] * 1_000
    job_id = await rig.submit()
    await until(lambda: rig.engine._leads_under() is not None)
    rig.store.fail["leadership.lead"] = [Unavailable("away")] * 1_000
    rig.clock.advance(20)
    dispatch.workers.pulse("far", 1, [])
    found = await rig.causes(job_id)
    assert [cause.code for cause in found] == [Cause.NO_LEADER]
    rig.store.fail.clear()


async def test_a_store_that_is_away_is_the_error(
    any_store: OpenStore,
):
    rig = await any_store("memory")
    job_id = await rig.submit()
    rig.store.fail["reads.get"] = [StoreAway("cannot reach PostgreSQL at db:5432")]
    with pytest.raises(Unavailable, match="db:5432"):
        await rig.engine.explain(job_id)
    with pytest.raises(NotFound):
        await rig.engine.explain(new_job_ids(1)[0])


async def test_long_lists_of_facts_are_cut(any_store: OpenStore):
    rig = await any_store("memory")
    await rig.worker(slots=MOST_NAMED + 5, concurrency=MOST_NAMED + 5)
    for _ in range(MOST_NAMED + 5):
        await rig.submit()
    for number in range(MOST_NAMED + 5):
        await rig.worker(f"old-{number}", types=frozenset({"old"}))
        await rig.engine.drain_worker(f"old-{number}")
    session = rig.session()
    assert session is not None
    await until(lambda: len(session.held) == MOST_NAMED + 5)
    busy = (await rig.causes(await rig.submit()))[0]
    assert (busy.facts["running"], len(busy.facts["held_by"])) == (MOST_NAMED + 5, MOST_NAMED)
    gone = (await rig.causes(await rig.submit(type="old")))[0]
    assert gone.code is Cause.SLOTS_BUSY, "the first worker takes every type"
    await rig.engine.drain_worker("w")
    gone = (await rig.causes(await rig.submit(type="old")))[0]
    assert (gone.facts["workers_in_all"], len(gone.facts["workers"])) == (
        MOST_NAMED + 6,
        MOST_NAMED,
    )


async def test_a_retry_by_hand_clears_the_suspicion(
    any_store: OpenStore,
):
    rig = await any_store("memory")
    worker = await rig.worker(concurrency=4)
    job_id = await twice_deadly(rig, worker)
    assert deaths_of(await rig.engine.history(job_id)) == 2
    await rig.engine.cancel(job_id)
    await rig.engine.retry(job_id)
    assert deaths_of(await rig.engine.history(job_id)) == 0


def test_the_guide_has_every_cause():
    page = Path(__file__).parents[2].joinpath("docs", "monitoring.md").read_text()
    assert [cause for cause in Cause if f"`{cause}`" not in page] == []
    assert {cause for cause, _, _ in SITUATIONS} | {Cause.NO_LEADER} == set(Cause)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (60, "1 min"), (3_725, "1 h 2 min"), (180_000, "2 d 2 h")],
)
def test_durations_have_two_units(seconds: float, text: str):
    assert span(seconds) == text
