"""A job's way: HTTP, Redis, Kafka, the scheduler that leads, Kafka, a worker, and back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import httpx
import pytest

from jobqueue.core.dispatch import Hint
from jobqueue.core.errors import Conflict
from jobqueue.core.job import JobSpec, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.unique import UniqueKey
from jobqueue.engine.engine import Engine
from jobqueue.events.dispatch.link import KafkaLink
from jobqueue.events.dispatch.worker import KafkaDispatch
from jobqueue.server.process import ServerProcess
from jobqueue.tasks.task import define
from jobqueue.worker.registry import Registry
from jobqueue.worker.runtime import WorkerRuntime
from tests.api.public.hand import Hand
from tests.history.checker import Evidence, assert_kept
from tests.stores.driver import worker
from tests.streaming.system import System, client, ended, say_again, spoken, until

pytestmark = [pytest.mark.integration]


async def submit(api: ServerProcess, count: int = 1, **how: object) -> list[str]:
    spec = JobSpec(**{"payload": b"{}", "type": "echo", **how})  # type: ignore[arg-type]
    return [one.unwrap() for one in await api.backend.submit([spec] * count)]


async def published(system: System, wanted: Counter[str], *topics: str) -> list[str]:
    """The events of the topics, once these are among them."""

    async def found() -> list[str] | None:
        there = [one.event for one in await asyncio.to_thread(spoken, system.kafka, *topics)]
        return there if not wanted - Counter(there) else None

    return await until(found, f"{wanted} in {topics}")


@pytest.mark.req("sch:API", "sch:LOOP", "sch:LIFE", "sch:TOPICS")
async def test_a_job_submitted_over_http_is_done_and_told_of(system: System) -> None:
    api = await system.all()
    async with client(api) as http:
        answer = await http.post("/jobs", json={"type": "echo", "payload": {"number": 7}})
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["job_id"]
        await ended(api.backend, job_id)
        shown = (await http.get(f"/jobs/{job_id}")).json()
        refused = await http.post("/jobs", json={"type": "echo", "priority": 10, "payload": {}})
    assert shown["status"] == "SUCCESS"
    assert shown["assigned_worker"] == "w"
    assert refused.status_code in (400, 422)
    for topic, events in {
        "requests": ["JobCreated"],
        "assignments": ["JobAssigned"],
        "results": ["JobStarted", "JobCompleted"],
        "workers": ["WorkerRegistered"],
    }.items():
        assert sorted(await published(system, Counter(events), topic)) == sorted(events)


async def test_each_job_goes_to_a_worker_that_knows_its_task(system: System) -> None:
    """A job that no worker knows waits, and costs the others nothing."""
    api = await system.server("api")
    await system.server("scheduler")
    (unknown,) = await submit(api, type="gamma", priority=9)
    for name in ("alpha", "beta"):
        registry = Registry()
        registry.add(define(_known, name=name))
        await system.worker(name, registry=registry)
    jobs = {name: await submit(api, 5, type=name) for name in ("alpha", "beta", "alpha")}
    for name, ids in jobs.items():
        assert {job.worker_id for job in await ended(api.backend, *ids)} == {name}
    waiting = await api.backend.get(unknown)
    assert (waiting.state, waiting.attempt) == (State.PENDING, 0)
    registry = Registry()
    registry.add(define(_known, name="gamma"))
    await system.worker("gamma", registry=registry)
    (job,) = await ended(api.backend, unknown)
    assert (job.state, job.worker_id, job.attempt) == (State.DONE, "gamma", 1)


async def _known() -> str:
    return "done"


async def test_a_unique_job_is_there_once_and_gives_its_place(system: System) -> None:
    api = await system.all()
    one = UniqueKey(key="k")
    debounced = UniqueKey(key="d", scope="waiting", on_conflict="replace")
    (running,) = await submit(api, type="sleep", payload=b'{"seconds": 0.5}', unique=one)
    assert await submit(api, 2, unique=one) == [running] * 2
    first, later = await submit(api, 2, delay=0.5, unique=debounced)
    old, done, ran = await ended(api.backend, first, later, running)
    assert (old.state, old.reason) == (State.DEAD_LETTERED, Reason.SUPERSEDED)
    assert (done.state, ran.state) == (State.DONE, State.DONE)
    (again,) = await submit(api, unique=one)
    assert again != running
    await ended(api.backend, again)


async def test_limits_of_keys_hold_through_kafka(system: System) -> None:
    """The history judges it: assigned jobs count, although they are still in a topic."""
    api = await system.server("api")
    limits = {"key_max_running": 2, "key_weights": {"*": 1}, "max_running": 5}
    async with client(api) as http:
        answer = await http.patch("/queues/default", json=limits)
        assert answer.status_code == 200, answer.text
    await system.server("scheduler")
    await system.worker()
    submitted = [await submit(api, 15, concurrency_key=key) for key in ("a", "b", "c", None)]
    ids = [job_id for some in submitted for job_id in some]
    jobs = {job.id: job for job in await ended(api.backend, *ids)}
    assert {job.state for job in jobs.values()} == {State.DONE}
    events = [event for job_id in ids for event in await api.backend.history(job_id)]
    assert_kept(
        Evidence(events=events, jobs=jobs, running={"default": 5}, key_running={"default": 2})
    )


@pytest.mark.req("sch:ROADMAP", "sch:LOOP")
async def test_a_failing_job_is_retried_after_one_second_then_two(system: System) -> None:
    api = await system.all()
    (job_id,) = await submit(api, type="fail", payload=b'{"times": 2}', max_retries=3)
    (job,) = await ended(api.backend, job_id)
    assert (job.state, job.attempt) == (State.DONE, 3)
    events = await api.backend.history(job_id)
    failed = [one.at for one in events if one.to_state is State.FAILED]
    again = [one.at for one in events if one.reason is Reason.RETRY_DUE]
    for wait, (since, back) in zip((1.0, 2.0), zip(failed, again, strict=True), strict=True):
        assert back - since >= wait
    assert Counter(await published(system, Counter(JobFailed=2), "results"))["JobFailed"] == 2
    assert Counter(await published(system, Counter(JobRequeued=2), "requests")) == Counter(
        JobCreated=1, JobRequeued=2
    )


@pytest.mark.req("sch:ROADMAP")
async def test_a_job_that_runs_too_long_is_ended_and_prometheus_shows_it(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the scheduler, where its worker does not do it."""
    monkeypatch.setattr(WorkerRuntime, "_time_out", lambda *_: None)
    api = await system.all()
    (job_id,) = await submit(
        api, type="sleep", payload=b'{"seconds": 3600}', timeout=0.2, max_retries=0
    )
    (job,) = await ended(api.backend, job_id)
    assert job.state is State.DEAD_LETTERED
    (failed,) = [e for e in await api.backend.history(job_id) if e.to_state is State.FAILED]
    assert failed.reason is Reason.TIMED_OUT

    async def stopped() -> bool:
        return not system.workers[0].runtime.running

    await until(stopped, "its worker is told")
    async with client(api) as http:
        shown = (await http.get("/metrics")).text
    assert 'jq_job_queue_depth{queue="default",status="DEAD_LETTERED"} 1.0' in shown
    assert 'jq_worker_job_concurrency{worker_id="w"} 0.0' in shown


@pytest.mark.req("sch:ROADMAP", "sch:WORKER", "sch:SCHEMA")
async def test_jobs_go_to_the_least_loaded_worker_and_never_beyond_its_slots(
    system: System,
) -> None:
    api = await system.server("api")
    await system.server("scheduler")
    for name, slots in (("one", "2"), ("two", "3")):
        await system.worker(name, more={"worker.concurrency": slots})
    jobs = await submit(api, 8, type="sleep", payload=b'{"seconds": 30}')

    async def shared_out() -> Counter[str | None] | None:
        found = [await api.backend.get(job_id) for job_id in jobs]
        by_worker = Counter(job.worker_id for job in found if job.state is State.RUNNING)
        return by_worker if by_worker.total() == 5 else None

    assert await until(shared_out, "five run") == Counter(one=2, two=3)
    async with client(api) as http:  # in the words of the scheduler's document
        shown = (await http.get("/workers")).json()["workers"]
        plain = (await http.get("/workers", params={"view": "canonical"})).json()["workers"]
    assert {one["worker_id"]: (one["status"], len(one["current_jobs"])) for one in shown} == {
        "one": ("ALIVE", 2),
        "two": ("ALIVE", 3),
    }
    assert {job for one in shown for job in one["current_jobs"]} < set(jobs)
    assert [(one["status"], "current_jobs" in one) for one in plain] == [("ONLINE", False)] * 2
    assert {worker.running for worker in await api.backend.list_workers()} == {2, 3}
    queue = await api.backend.queue_stats("default")
    assert queue.depth[State.PENDING] == 3
    for job_id in jobs:
        await api.backend.cancel(job_id)
    await ended(api.backend, *jobs)  # the word of a cancel reaches the workers


@pytest.mark.req("sch:IDEMP")
async def test_what_is_delivered_twice_happens_once(system: System) -> None:
    """Every message of every topic, again and again, during the run and after it."""
    api = await system.all()
    topics = ("requests", "assignments", "results", "workers")
    running = await submit(api, 3, type="sleep", payload=b'{"seconds": 1}')
    done = await submit(api, 20)
    await ended(api.backend, *done)
    said = await asyncio.to_thread(spoken, system.kafka, *topics)
    assert {one.event for one in said} >= {"JobCreated", "JobAssigned", "JobCompleted"}
    for _ in range(3):
        await asyncio.to_thread(say_again, system.kafka, said)
    await ended(api.backend, *running)
    await asyncio.to_thread(say_again, system.kafka, said)
    (last,) = await submit(api)  # whoever did it has read everything before
    await ended(api.backend, last)
    for job_id in (*running, *done, last):
        events = await api.backend.history(job_id)
        assert [one.to_state.name for one in events] == [
            "PENDING", "ASSIGNED", "RUNNING", "DONE",
        ]  # fmt: skip
    worker = system.workers[0]
    body, _ = await worker.metrics.render()
    (line,) = [x for x in body.decode().splitlines() if x.startswith("jq_kafka_hints_dropped_to")]
    assert float(line.split()[1]) >= 3 * len(done)


@pytest.mark.req("sch:WORKER")
async def test_a_drained_worker_gets_nothing_and_hands_back_what_it_has_not_begun(
    system: System,
) -> None:
    api = await system.server("api")
    await system.server("scheduler")
    first = await system.worker("first", more={"worker.concurrency": "2"})
    jobs = await submit(api, 2, type="sleep", payload=b'{"seconds": 1}')

    async def both_run() -> bool:
        return all([(await api.backend.get(one)).state is State.RUNNING for one in jobs])

    await until(both_run, "both run")
    await api.backend.drain_worker("first")
    await until(lambda: _withdrawn(first), "it takes no more")
    (waits,) = await submit(api)
    await ended(api.backend, *jobs)
    assert (await api.backend.get(waits)).state is State.PENDING
    await system.worker("second")
    (job,) = await ended(api.backend, waits)
    assert job.worker_id == "second"
    await api.backend.drain_worker("second")
    await api.backend.undrain_worker("first")
    (job,) = await ended(api.backend, *await submit(api))
    assert job.worker_id == "first"
    await api.backend.undrain_worker("second")
    await first.stop()
    shown = {one.info.id: one.status for one in await api.backend.list_workers()}
    assert shown == {"second": WorkerStatus.ONLINE}


async def _withdrawn(worker: object) -> bool:
    return not worker.runtime._taking  # type: ignore[attr-defined]


@pytest.mark.req("sch:API")
async def test_each_role_does_its_own(system: System) -> None:
    """Workers do not connect to an API; a scheduler shows its health and figures only."""
    api = await system.server("api")
    scheduler = await system.server("scheduler")
    with pytest.raises(Conflict, match="its workers receive jobs through Kafka"):
        await Hand.connect(api.backend)
    assert (scheduler.grpc_target, bool(api.grpc_target)) == ("", True)
    async with client(scheduler) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert "jq_scheduler_cycle_duration_seconds" in (await http.get("/metrics")).text
        assert (await http.get("/jobs")).status_code == 404
    async with httpx.AsyncClient(base_url=api.http_url, trust_env=False) as http:
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.req("sch:API")
async def test_one_process_may_do_it_all(system: System) -> None:
    """Also with a pool, which hears of its jobs as every worker does."""
    both = await system.server("all", **{"worker.concurrency": "2"})
    jobs = await submit(both, 5)
    assert {job.state for job in await ended(both.backend, *jobs)} == {State.DONE}


@pytest.mark.req("sch:TOPICS", "sch:WORKER")
async def test_a_worker_that_counts_on_more_partitions_than_there_are_stops_nobody(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    """Its settings and the leader's differ. It finds its jobs with its heartbeat."""
    api = await system.server("api")
    await system.server("scheduler")
    assert isinstance(api.backend, Engine)
    store = api.backend.store
    for name in "abcd":  # one for each partition that the leader knows
        await store.workers.register(worker(name))
        await store.workers.set_status(name, WorkerStatus.DRAINING)
    await system.worker(more={"kafka.assignment_partitions": "8"})
    jobs = await submit(api, 2)
    assert {job.state for job in await ended(api.backend, *jobs)} == {State.DONE}

    async def caught_up() -> bool:
        lag = await store.stream.lag()
        return lag is not None and not lag.events and not lag.refused

    async def said() -> bool:
        return "has no partition 4; the store is read at intervals instead" in caplog.text

    await until(caught_up, "the event stream has it all")
    await until(said, "the worker says what is wrong")


@pytest.mark.req("sch:LOOP", "sch:WORKER")
async def test_an_assignment_that_was_not_heard_is_told_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through Kafka: this worker's heartbeats are too rare to find it."""
    lost: list[Hint] = []
    told: list[Hint] = []
    real = KafkaLink.heard

    def heard(link: KafkaLink, hints: Sequence[Hint]) -> None:
        if lost:
            told.extend(hints)
            real(link, hints)
        else:
            lost.extend(hints)

    looks: list[KafkaLink] = []  # at its start, and when Kafka is listened to
    look = KafkaLink.look

    def note(link: KafkaLink) -> None:
        looks.append(link)
        look(link)

    async def listening() -> bool:
        return len(looks) == 2

    monkeypatch.setattr(KafkaLink, "heard", heard)
    monkeypatch.setattr(KafkaLink, "look", note)
    monkeypatch.setattr(KafkaDispatch, "_changed", lambda dispatch, change: None)  # not by Redis
    api = await system.server("api")
    rare = {"worker.heartbeat_interval": "60", "worker.heartbeat_timeout": "90"}
    await system.server("scheduler", **{"kafka.resend_after": "0.5"}, **rare)
    await system.worker(more=rare)
    await until(listening, "it listens to Kafka")
    (job_id,) = await submit(api)
    (job,) = await ended(api.backend, job_id)
    assert job.attempt == 1
    assert {one.job_id for one in lost} == {one.job_id for one in told} == {job_id}
    assert lost[0].event_id != told[0].event_id
