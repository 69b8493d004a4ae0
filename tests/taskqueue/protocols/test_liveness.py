"""Heartbeats alone decide which workers are alive; the others get no work."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import InvalidArgument, QueueFull, Unavailable
from jobqueue.taskqueue.components import journal, liveness
from jobqueue.taskqueue.components.liveness import Liveness
from jobqueue.taskqueue.components.model import (
    CANCELED_LOST,
    HEARTBEAT_INTERVAL_MS,
    RETRY_AFTER_MS,
    WORKER_TIMEOUT_MS,
    Status,
)
from jobqueue.taskqueue.components.protocols import new_request_id
from tests.taskqueue.protocols.faulty import first, loses_reply
from tests.taskqueue.protocols.rig import WORKER, Rig
from tests.taskqueue.protocols.virtual_time import virtual_time


class Told:
    """A clock that is told the time."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def workers(told: Told) -> Liveness:
    return Liveness(4_000, told)


@pytest.mark.req("tq:LIVENESS")
def test_a_worker_is_alive_until_the_timeout(workers: Liveness, told: Told):
    assert not workers.alive("w")
    assert workers.beat("w")
    told.seconds += 3.999
    assert workers.alive("w")
    told.seconds += 0.001
    assert not workers.alive("w")


def test_a_beat_is_news_only_when_the_worker_was_not_alive(workers: Liveness, told: Told):
    assert workers.beat("w")
    told.seconds += 3
    assert not workers.beat("w")
    told.seconds += 3
    assert workers.alive("w")
    told.seconds += 3
    assert workers.beat("w")
    assert workers.workers == 1


def test_silence_is_told_once_with_the_jobs_and_forgets_them(workers: Liveness, told: Told):
    for name in ("w", "v"):
        workers.beat(name)
    workers.give("w", "j1")
    workers.give("v", "j2")
    workers.give("w", "j3")
    assert workers.silent() == []
    told.seconds += 2
    workers.beat("v")
    told.seconds += 2
    assert workers.silent() == [("w", ["j1", "j3"])]
    assert workers.silent() == []
    assert workers.owner("j1") is None
    assert workers.owner("j2") == "v"
    assert (workers.workers, workers.given) == (1, 1)


def test_a_job_given_to_a_worker_that_was_forgotten_meanwhile_is_told_as_well(workers, told):
    workers.beat("w")
    told.seconds += 4
    assert workers.silent() == [("w", [])]
    workers.give("w", "j")
    assert workers.silent() == [("w", ["j"])]
    assert workers.given == 0


def test_a_job_that_is_over_belongs_to_nobody(workers: Liveness):
    workers.give("w", "j")
    workers.take("j")
    workers.take("j")
    assert workers.owner("j") is None


def test_workers_are_bounded_and_those_that_are_known_still_beat(workers, monkeypatch):
    monkeypatch.setattr(liveness, "MAX_WORKERS", 2)
    workers.beat("a")
    workers.beat("b")
    with pytest.raises(QueueFull):
        workers.beat("c")
    assert not workers.beat("a")


class _Named(str):
    """A name that counts how often it is compared."""

    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Named.times += 1
        return str.__eq__(self, other)


def test_many_that_fall_silent_at_once_cost_one_look_at_the_jobs(workers, told):
    names = [_Named(f"worker-{number}") for number in range(50)]
    for name in names:
        workers.beat(name)
        for number in range(10):
            workers.give(name, f"{name}-{number}")
    told.seconds += 5
    _Named.times = 0
    assert [len(jobs) for _, jobs in workers.silent()] == [10] * 50
    assert workers.given == 0
    assert _Named.times < 50 * 50


# -- at the coordinator ----------------------------------------------------------------------------


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-32")
def test_the_constants():
    assert (HEARTBEAT_INTERVAL_MS, WORKER_TIMEOUT_MS) == (1_000, 4_000)


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-9", "tq:NFR-5", "tq:FR-6", "tq:LOCK-32")
@virtual_time
async def test_a_silent_worker_gets_no_work_until_it_beats_again(rig: Rig):
    job_id = await rig.submit()

    async def fetch() -> str:
        return (await rig.coordination.fetch(WORKER, request_id=new_request_id())).job_id

    assert await fetch() == ""  # it was never heard
    await rig.beat()
    rig.seconds += WORKER_TIMEOUT_MS / 1000
    assert await fetch() == ""
    assert len(rig.queue) == 1
    rig.coordinator.look()
    (line,) = rig.lines.of("worker_unavailable")
    assert line.__dict__["worker_id"] == WORKER
    assert await fetch() == ""
    assert await rig.status(job_id) is Status.QUEUED
    await rig.beat()
    assert len(rig.lines.of("worker_available")) == 2
    assert await fetch() == job_id


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-9")
@virtual_time
async def test_who_asks_or_reports_and_does_not_beat_is_silent_all_the_same(rig: Rig):
    job_id = await rig.running()
    waiting = await rig.submit()
    rig.seconds += WORKER_TIMEOUT_MS / 1000 - 0.001
    another = (await rig.coordination.fetch(WORKER, request_id=new_request_id())).job_id
    assert another == waiting  # it was heard within the timeout
    assert await rig.report(job_id)
    left = await rig.submit()
    rig.seconds += 0.001
    assert (await rig.coordination.fetch(WORKER, request_id=new_request_id())).job_id == ""
    assert await rig.status(left) is Status.QUEUED
    rig.coordinator.look()
    (line,) = rig.lines.of("worker_unavailable")
    assert line.__dict__["job_ids"] == [another]


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-9")
@virtual_time
async def test_an_idle_or_silent_worker_is_told_when_to_ask_again(rig: Rig):
    silent = await rig.coordination.fetch(WORKER, request_id=new_request_id())
    idle = await rig.fetch()
    assert silent.retry_after_ms == idle.retry_after_ms == RETRY_AFTER_MS


@pytest.mark.req("tq:LIVENESS", "tq:NFR-5")
@virtual_time
async def test_a_worker_that_falls_silent_while_the_queue_is_slow_gets_nothing(rig: Rig):
    job_id = await rig.submit()

    async def wait() -> None:
        rig.seconds += WORKER_TIMEOUT_MS / 1000

    rig.coordinator_calls.on("queue.dequeue", first(wait))
    assert (await rig.fetch()).job_id == ""
    assert await rig.status(job_id) is Status.QUEUED
    assert (await rig.fetch("worker-2")).job_id == job_id  # and it is not lost


@pytest.mark.req("tq:NFR-5", "tq:LIVENESS")
@virtual_time
async def test_the_jobs_of_a_silent_worker_are_named_and_stay_running(rig: Rig):
    job_id = await rig.running()
    rig.seconds += WORKER_TIMEOUT_MS / 1000
    rig.coordinator.look()
    (line,) = rig.lines.of("worker_unavailable")
    assert line.__dict__["job_ids"] == [job_id]
    assert await rig.status(job_id) is Status.RUNNING
    assert rig.coordinator.assigned == 0
    assert await rig.report(job_id)  # it was only slow
    await rig.check()


@pytest.mark.req("tq:LIVENESS")
@virtual_time
async def test_the_coordinator_looks_by_itself_and_stops_looking(rig: Rig):
    await rig.coordinator.start()
    await rig.beat()
    rig.seconds += WORKER_TIMEOUT_MS / 1000
    await asyncio.sleep(WORKER_TIMEOUT_MS / 1000)
    assert rig.lines.of("worker_unavailable")
    await rig.coordinator.stop()


@pytest.mark.req("tq:FR-6", "tq:LIVENESS")
@virtual_time
async def test_a_heartbeat_answers_when_the_next_is_due(rig: Rig):
    assert await rig.coordination.heartbeat(WORKER, 1, 6) == HEARTBEAT_INTERVAL_MS
    assert rig.coordinator.workers == 1


@pytest.mark.parametrize("worker_id", ["", "x" * 256, "a\nb"])
@virtual_time
async def test_a_worker_has_a_name(rig: Rig, worker_id):
    with pytest.raises(InvalidArgument, match="worker_id"):
        await rig.coordinator.heartbeat(worker_id, 0, 1)
    with pytest.raises(InvalidArgument, match="worker_id"):
        await rig.coordination.fetch(worker_id, request_id="r")
    with pytest.raises(InvalidArgument, match="worker_id"):
        await rig.report("j", worker_id=worker_id)


@pytest.mark.req("tq:LIVENESS", "tq:NFR-5")
@virtual_time
async def test_the_jobs_of_a_worker_that_was_back_before_it_was_missed_are_named(rig: Rig):
    beat = rig.coordinator.heartbeat
    await beat(WORKER, 0, 1, incarnation="before")
    job_id = await rig.running()
    await beat(WORKER, 0, 1, incarnation="before")
    assert not rig.lines.of(journal.STATE_LOST)
    await beat(WORKER, 0, 1, incarnation="after")
    await beat(WORKER, 0, 1, incarnation="after")
    (line,) = rig.lines.of(journal.STATE_LOST)
    assert (line.__dict__["worker_id"], line.__dict__["job_ids"]) == (WORKER, [job_id])
    assert await rig.status(job_id) is Status.RUNNING
    assert rig.coordinator.assigned == 0
    another = await rig.running()  # what it is given now is its own
    await beat(WORKER, 0, 1, incarnation="after")
    assert len(rig.lines.of(journal.STATE_LOST)) == 1
    assert await rig.report(another)


# -- RUNNING, and no worker has it -----------------------------------------------------------------


async def lost(rig: Rig) -> str:
    """A job that was started, and whose coordinator was killed before a worker had it."""
    job_id = await rig.submit()
    await rig.fetch("nobody")
    rig.new_coordinator()
    return job_id


async def search(rig: Rig) -> None:
    """Run the search twice: a missing job may be on its way in the first round."""
    await rig.coordinator.find_lost()
    await rig.coordinator.find_lost()


@pytest.mark.req("tq:NFR-5", "tq:CANCEL")
@virtual_time
async def test_a_running_job_that_no_worker_has_is_told_of_once_and_a_cancel_ends_it(rig: Rig):
    job_id = await lost(rig)
    await rig.coordinator.find_lost()
    assert not rig.lines.of("running_nowhere")
    for _ in range(3):
        await rig.coordinator.find_lost()
    (line,) = rig.lines.of("running_nowhere")
    assert (line.__dict__["job_id"], line.levelname) == (job_id, "WARNING")
    assert await rig.status(job_id) is Status.RUNNING
    assert (await rig.gateway.cancel(job_id, "")).current is Status.RUNNING
    await rig.coordinator.find_lost()
    assert await rig.status(job_id) is Status.CANCELED
    envelope = await rig.gateway.result(job_id)
    assert envelope is not None
    assert envelope.output_summary == CANCELED_LOST
    await rig.check()


@pytest.mark.req("tq:NFR-5", "tq:LIVENESS")
@virtual_time
async def test_a_job_that_a_worker_says_it_has_is_not_lost_with_the_coordinator(rig: Rig):
    job_id = await rig.running()
    rig.new_coordinator()
    await rig.coordinator.heartbeat(WORKER, 0, 1, running=[job_id])
    await rig.gateway.cancel(job_id, "")
    await search(rig)
    assert await rig.status(job_id) is Status.RUNNING
    assert await rig.report(job_id)
    assert await rig.status(job_id) is Status.CANCELED
    rig.seconds += 60
    rig.coordinator.look()
    (line,) = rig.lines.of("worker_unavailable")
    assert line.__dict__["job_ids"] == []  # what was reported is nobody's


@pytest.mark.req("tq:NFR-5", "tq:LIVENESS")
@virtual_time
async def test_a_worker_that_falls_silent_is_told_of_with_the_jobs_that_it_said_it_has(rig: Rig):
    job_id = await rig.running()
    rig.new_coordinator()
    await rig.coordinator.heartbeat(WORKER, 0, 1, running=[job_id])
    rig.seconds += 60
    rig.coordinator.look()
    (line,) = rig.lines.of("worker_unavailable")
    assert line.__dict__["job_ids"] == [job_id]
    await search(rig)
    assert rig.lines.of("running_nowhere", job_id)
    assert await rig.report(job_id)  # it was only frozen


@pytest.mark.req("tq:NFR-5", "tq:LIVENESS")
@virtual_time
async def test_a_job_that_was_given_or_is_about_to_be_is_not_lost(rig: Rig):
    given = await rig.running()
    await rig.submit()
    rig.coordinator_calls.on("jobs.transition QUEUED->RUNNING", loses_reply())
    with pytest.raises(Unavailable):
        await rig.fetch()
    await search(rig)
    assert not rig.lines.of("running_nowhere")
    await rig.report(given)
    await rig.work_off()
    await rig.check()
