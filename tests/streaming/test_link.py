"""A worker's link on a real Redis, with hints that come as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from jobqueue.core.dispatch import Hint, HintKind
from jobqueue.core.errors import Conflict, InvalidArgument
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import Assignment, JobSpec, NewJob, Transition, Worker, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.observer import Observer
from jobqueue.core.progress import Progress
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.events.dispatch import link
from jobqueue.events.dispatch.link import KafkaLink
from jobqueue.events.dispatch.worker import KafkaDispatch
from jobqueue.stores.redis.store import RedisStore
from tests import patience
from tests.api.public.hand import Hand
from tests.stores.driver import worker
from tests.streaming.system import until

pytestmark = [pytest.mark.integration]


class Said:
    """Implements ``HintSource``: hints come when the test says them."""

    def __init__(self) -> None:
        self.heard: Callable[[Sequence[Hint]], None] = lambda hints: None
        self.partitions: list[int] = []

    def start(
        self,
        heard: Callable[[Sequence[Hint]], None],
        wanted: Callable[[], bool] | None = None,
    ) -> None:
        self.heard = heard

    async def stop(self) -> None:
        self.heard = lambda hints: None


class Stuck(Said):
    """Does not end in time, as when Kafka is away."""

    async def stop(self) -> None:
        await asyncio.Event().wait()


class Restless(Hand):
    """Connects again when its test says so."""

    def moved(self) -> None:
        """Not yet."""


class Counting(Observer):
    def __init__(self) -> None:
        self.dropped = 0

    def hints_dropped(self, count: int) -> None:
        self.dropped += count


class Bench:
    """A worker on its link, and a store as the leader has one."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url, partitions=4)  # the worker's own
        self.other = RedisStore(url, partitions=4)
        self.said = Said()
        self.observer = Counting()

    async def open(self) -> None:
        await self.store.open()
        await self.other.open()
        await self.other.queues.create(Queue(name="default", max_retries=3))

        def listen(partition: int, placed: Callable[[], None]) -> Said:
            self.said.partitions.append(partition)
            return self.said

        self.dispatch = KafkaDispatch(self.store, listen, self.observer)
        self.hand = await Hand.connect(self.dispatch)
        (worker,) = await self.other.workers.all()
        self.incarnation = worker.info.incarnation

    async def close(self) -> None:
        await self.store.close()
        await self.other.close()

    async def assign(self, count: int = 1, to: str = "hand") -> list[Assignment]:
        """What the leader does."""
        ids = new_job_ids(count)
        await self.other.jobs.submit([NewJob(one, JobSpec(payload=b"x")) for one in ids])
        return await self.other.jobs.claim([Claim(("default",), [to] * count)])

    def tell(self, *jobs: Assignment, **more: object) -> None:
        """What Kafka does."""
        hints = []
        for job in jobs:
            told = {
                "job_id": job.id,
                "attempt": job.attempt,
                "worker_id": job.worker_id,
                "incarnation": self.incarnation,
                **more,
            }
            hints.append(Hint(HintKind.JOB_ASSIGNED, "event", 0.0, **told))  # type: ignore[arg-type]
        self.said.heard(hints)

    async def state(self, job: Assignment) -> State:
        found = await self.other.reads.get(job.id)
        assert found is not None
        return found.state

    async def settled(self) -> None:
        """Everything that was said has been looked at, and brought nothing."""
        link = self.hand.link
        assert isinstance(link, KafkaLink)
        async with patience.timeout(20):
            while (
                link._wake.is_set()
                or link._one_at_a_time.locked()
                or (link._free and (link._told or link._look_at_all))
            ):
                await asyncio.sleep(0.01)
        assert self.hand.jobs.empty()


@pytest_asyncio.fixture
async def bench(redis_url: str) -> AsyncIterator[Bench]:
    made = Bench(redis_url)
    await made.open()
    yield made
    await made.hand.link.close()
    await made.close()


@pytest.mark.req("sch:IDEMP", "sch:WORKER")
async def test_a_hint_brings_the_job_once(bench: Bench) -> None:
    hand = bench.hand
    hand.link.grant(10)
    await bench.settled()  # its first look is over: only hints bring something now
    (job,) = await bench.assign()
    bench.tell(job, job)
    bench.tell(job)
    assert await hand.take() == job  # with all that the leader was given
    bench.tell(job)
    await bench.settled()
    await hand.start(job)
    bench.tell(job)
    await bench.settled()
    await hand.succeed(job)
    bench.tell(job)
    await bench.settled()
    assert bench.observer.dropped == 5
    assert [one.to_state for one in await bench.other.reads.history(job.id)] == [
        State.PENDING, State.ASSIGNED, State.RUNNING, State.DONE,
    ]  # fmt: skip


@pytest.mark.req("sch:IDEMP", "sch:PARTITION")
async def test_old_hints_and_those_of_others_bring_nothing(bench: Bench) -> None:
    bench.hand.link.grant(10)
    await bench.settled()
    (job,) = await bench.assign()
    bench.tell(job, incarnation=bench.incarnation + 1)
    await bench.settled()
    bench.tell(job, worker_id="another")  # workers may share a partition
    await bench.settled()
    bench.said.heard([Hint(HintKind.JOB_STARTED, "event", 0.0, job.id, worker_id="hand")])
    await bench.settled()
    bench.tell(job, attempt=7)
    await bench.settled()
    assert bench.observer.dropped == 2
    await bench.other.jobs.apply([Transition.handed_back(job.seq, job.lease)])
    bench.tell(job)  # an attempt that is over
    await bench.settled()
    assert bench.observer.dropped == 3


async def test_no_more_is_taken_than_there_are_slots(bench: Bench) -> None:
    hand = bench.hand
    jobs = await bench.assign(4)
    bench.tell(*jobs)
    await bench.settled()
    hand.link.grant(2)
    first = [await hand.take() for _ in range(2)]
    await bench.settled()
    for job in first:
        await hand.start(job)
    done = [Transition.succeeded(job.seq, job.lease, None) for job in first]
    assert await hand.link.report(done, freed=2) == [True, True]
    rest = [await hand.take() for _ in range(2)]
    assert {job.id for job in first + rest} == {job.id for job in jobs}


@pytest.mark.req("sch:WORKER")
async def test_what_nobody_told_is_found_with_the_heartbeat(bench: Bench) -> None:
    hand = bench.hand
    hand.link.grant(10)
    await bench.settled()
    jobs = await bench.assign(3)
    bench.tell(jobs[0])
    assert await hand.take() == jobs[0]
    await asyncio.to_thread(hand.link.pulse, [jobs[0].lease])
    assert {(await hand.take()).id for _ in range(2)} == {jobs[1].id, jobs[2].id}
    bench.tell(*jobs)
    await bench.settled()


async def test_a_heartbeat_brings_progress_to_the_store(bench: Bench) -> None:
    hand = bench.hand
    hand.link.grant(1)
    (job,) = await bench.assign()
    bench.tell(job)
    await hand.start(await hand.take())
    told = {job.lease: Progress.of(0.25, "1 of 4 files")}
    await asyncio.to_thread(hand.link.pulse, [job.lease], [job.lease], False, progress=told)
    seen = await bench.other.reads.get(job.id)
    assert seen is not None
    assert seen.progress is not None
    assert (seen.progress.value, seen.progress.text) == (0.25, "1 of 4 files")


async def test_a_lease_that_runs_without_the_worker_is_lost_after_two_heartbeats(
    bench: Bench,
) -> None:
    hand = bench.hand
    hand.link.grant(1)
    (job,) = await bench.assign()
    bench.tell(job)
    await hand.start(await hand.take())
    await asyncio.to_thread(hand.link.pulse, [], (), False)  # the loop was blocked: says nothing
    await asyncio.to_thread(hand.link.pulse, [])
    await bench.settled()
    assert await bench.state(job) is State.RUNNING
    await asyncio.to_thread(hand.link.pulse, [])

    async def lost() -> bool:
        return await bench.state(job) is State.FAILED

    await until(lost, "it failed over")
    assert (await bench.other.reads.history(job.id))[-1].reason is Reason.WORKER_LOST


@pytest.mark.req("sch:WORKER")
async def test_a_worker_that_drains_hands_back_what_it_is_told(bench: Bench) -> None:
    hand = bench.hand
    jobs = await bench.assign(2)
    bench.tell(jobs[0])
    await hand.link.drain()

    async def back() -> bool:
        return {await bench.state(job) for job in jobs} == {State.PENDING}

    await until(back, "both are handed back")  # also the one that it did not hear of
    (worker,) = await bench.other.workers.all()
    assert worker.status is WorkerStatus.DRAINING
    assert hand.jobs.empty()


async def test_a_pause_takes_every_slot_back_and_the_worker_stays_online(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing is assigned to it while it runs a job under which workers died."""
    monkeypatch.setattr(link, "_LEADERS_LOOK", 0.01)
    hand = bench.hand
    hand.link.grant(3)
    (suspect,) = await bench.assign()
    bench.tell(suspect)
    await hand.start(await hand.take())
    jobs = await bench.assign(2)  # the leader does not know yet
    await hand.link.drain(pause=True)
    assert {await bench.state(job) for job in jobs} == {State.PENDING}
    (worker,) = await bench.other.workers.all()
    assert worker.status is WorkerStatus.ONLINE
    assert worker.withheld == worker.info.concurrency - 1
    hand.link.grant(worker.info.concurrency - 1)
    await asyncio.to_thread(hand.link.pulse, [suspect.lease])
    (worker,) = await bench.other.workers.all()
    assert worker.withheld == 0
    again = await bench.other.jobs.claim([Claim(("default",), ["hand"] * 2)])
    bench.tell(*again)
    assert {(await hand.take()).id for _ in again} == {job.id for job in jobs}


async def test_a_word_of_somebody_else_reaches_the_worker_at_once(bench: Bench) -> None:
    """Without waiting for a heartbeat: cancels, and what an operator wants."""
    hand = bench.hand
    hand.link.grant(1)
    (job,) = await bench.assign()
    bench.tell(job)
    await hand.start(await hand.take())
    assert await bench.other.jobs.request_cancel(job.seq)
    assert await patience.wait_for(hand.cancelled.get(), 10) == job.lease
    await bench.other.workers.set_status("hand", WorkerStatus.STOPPING)
    assert await patience.wait_for(hand.statuses.get(), 10) is WorkerStatus.STOPPING


async def test_a_new_life_takes_the_place_of_the_old_one(bench: Bench) -> None:
    hand = bench.hand
    hand.link.grant(1)
    (job,) = await bench.assign()
    bench.tell(job)
    await hand.start(await hand.take())
    again = await Hand.connect(bench.dispatch)
    assert await bench.state(job) is State.FAILED  # the old one's, to be tried again
    assert bench.said.partitions == [0, 0]
    assert not (await asyncio.to_thread(hand.link.pulse, [job.lease])).known
    await again.link.close()
    assert await bench.other.workers.all() == []


@pytest.mark.req("sch:IDEMP", "sch:PARTITION")
async def test_an_old_life_takes_nothing_from_the_new_one(bench: Bench) -> None:
    """It may not have noticed yet. What it looks for on its own is the new one's, like the name."""
    old = bench.hand
    old.link.grant(10)
    await bench.settled()
    new = await Hand.connect(bench.dispatch)
    jobs = await bench.assign(2)
    assert isinstance(old.link, KafkaLink)
    old.link.look()
    await bench.settled()
    await old.link.drain()
    await old.link.close()
    assert [await bench.state(job) for job in jobs] == [State.ASSIGNED] * 2
    (worker,) = await bench.other.workers.all()
    assert worker.status is WorkerStatus.ONLINE
    new.link.grant(10)
    assert {(await new.take()).id for _ in jobs} == {job.id for job in jobs}
    await new.link.close()


@pytest.mark.req("sch:PARTITION")
async def test_an_old_life_does_not_come_back(bench: Bench) -> None:
    """Two processes of one name would fail over each other's jobs for ever."""
    old, new = (worker("twice", incarnation, queues=("default",)) for incarnation in (1, 2))
    hand = Restless("twice")
    hand.link = await bench.dispatch.connect(old, hand)
    other = KafkaDispatch(bench.other, lambda partition, placed: Said())
    (job,) = await bench.assign(to="twice")
    successor = await other.connect(new, Restless("twice"))
    await hand.link.close()
    with pytest.raises(Conflict, match="twice"):
        await bench.dispatch.connect(old, hand)
    assert await bench.other.workers.partition_of("twice", 2) is not None
    await bench.other.workers.set_status("twice", WorkerStatus.OFFLINE)
    again = await bench.dispatch.connect(old, hand)  # the other one is lost: it may
    assert await bench.other.workers.partition_of("twice", 1) is not None
    await successor.close()
    await again.close()
    assert await bench.state(job) is State.FAILED


@pytest.mark.req("sch:WORKER")
async def test_a_worker_whose_slots_did_not_come_free_hands_back_what_waits_for_them(
    bench: Bench,
) -> None:
    """A thread that timed out may go on. Its lease is over, and its slot is not free."""
    hand = await Hand.connect(bench.dispatch, worker_id="slow", slots=1, concurrency=1)
    (first,) = await bench.assign(to="slow")
    assert isinstance(hand.link, KafkaLink)
    hand.link.look()
    await hand.start(await hand.take())
    late = Transition.timed_out(first.seq, first.lease, "too slow")
    assert await hand.link.report([late]) == [True]
    (second,) = await bench.assign(to="slow")
    await asyncio.to_thread(hand.link.pulse, [])
    await bench.settled()
    assert await bench.state(second) is State.ASSIGNED  # its slot may be about to come free

    async def slow() -> Worker:
        return {one.info.id: one for one in await bench.other.workers.all()}["slow"]

    assert (await slow()).withheld == 0
    await asyncio.to_thread(hand.link.pulse, [], overrun=1)

    async def back() -> bool:
        return await bench.state(second) is State.PENDING

    await until(back, "it is handed back")
    assert ((await slow()).withheld, (await slow()).overrun) == (1, 1)
    assert hand.jobs.empty()
    hand.link.grant(1)  # the thread has ended
    await asyncio.to_thread(hand.link.pulse, [], overrun=0)
    assert ((await slow()).withheld, (await slow()).overrun) == (0, 0)
    await hand.link.close()


@pytest.mark.req("sch:PARTITION")
async def test_a_link_that_is_closed_while_kafka_is_away_does_nothing_more(bench: Bench) -> None:
    """The worker gives up waiting and connects again: what it gets then is not the old link's."""
    dispatch = KafkaDispatch(bench.store, lambda partition, placed: Stuck())
    info = worker("cut off", queues=("default",))
    hand = Hand("cut off")
    closed = await dispatch.connect(info, hand)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await closed.close()
    assert [one.info.id for one in await bench.other.workers.all()] == ["hand"]
    hand.link = await bench.dispatch.connect(info, hand)
    (job,) = await bench.assign(to="cut off")
    assert isinstance(closed, KafkaLink)
    closed.look()
    await bench.settled()
    assert await bench.state(job) is State.ASSIGNED
    hand.link.grant(1)
    assert await hand.take() == job
    await hand.link.close()


async def test_a_store_without_partitions_is_told_apart(redis_url: str) -> None:
    store = RedisStore(redis_url)
    await store.open()
    try:
        with pytest.raises(InvalidArgument, match="no partition"):
            await Hand.connect(KafkaDispatch(store, lambda partition, placed: Said()))
    finally:
        await store.close()
