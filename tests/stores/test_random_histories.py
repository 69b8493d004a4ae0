"""Random operations against a store, against a tiny model of it, and against the pure rules of the
core, which decide every field and every event of a job; then the checker judges."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobqueue.core.clock import ManualClock
from jobqueue.core.decide import event_of
from jobqueue.core.job import Assignment, Job, JobSpec, Outcome, SubmitStatus, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.progress import Progress
from jobqueue.core.retry import PROFILES
from jobqueue.core.store import Claim, Rules
from jobqueue.core.unique import UniqueKey
from tests.examples import FACTOR, examples
from tests.services import kept
from tests.stores.driver import NO_BACKOFF, Driver, new, spec, worker
from tests.stores.every import STORES, Places
from tests.stores.model import Model, ModelJob
from tests.stores.twin import Twin

RULES = Rules(assignment_timeout=6.0, poison_after=3, key_ttl=25.0, watchdog_grace=1.0)
QUEUES = ("q", "r")
TYPES = ("", "a", "b")
MEANT = (None, None, frozenset("a"), frozenset(("a", "b")), frozenset(("", "unknown")))
WORKERS = ("w0", "w1")
UNIQUE = (
    *[None] * 6,
    UniqueKey(key="u"),
    UniqueKey(key="u", on_conflict="reject"),
    UniqueKey(key="u", scope="waiting"),
    UniqueKey(key="u", period=5.0),
    UniqueKey(key="u", scope="waiting", on_conflict="replace"),
    UniqueKey(key="v", scope="waiting", on_conflict="replace"),
)
CAPACITY = 6

# An operation is a name and numbers; what they mean depends on what there is at that moment.
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["submit"] * 3,
                "submit batch",
                *["submit to a free slot"] * 2,
                *["claim"] * 3,
                *["start", "succeed", "fail", "lose", "hand back", "stale report"],
                *["progress"] * 2,
                *["cancel", "request cancel", "retry by hand", "pause", "resume", "limit"],
                *["tick"] * 3,
            ]
        ),
        st.integers(0, 2**16),
        st.integers(0, 2**16),
    ),
    max_size=60,
)


class Machine:
    """Does each operation to all and compares what they say."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.twins: dict[int, Twin] = {}
        self.model = Model(RULES, PROFILES[NO_BACKOFF], CAPACITY)

    async def step(self, name: str, x: int, y: int) -> None:
        match name:
            case "submit":
                await self._submit([(x, y)])
            case "submit batch":
                await self._submit([(x + n * 7, y + n * 13) for n in range(4)])
            case "submit to a free slot":
                # An engine offers slots with a submit only where nothing is known to wait.
                slots = 0 if self.model.claimable(QUEUES) else 1 + y % 2
                await self._submit([(x, y), (x + 7, y + 13)], slots)
            case "claim":
                await self._claim(x, y)
            case "pause" | "resume":
                queue = QUEUES[x % 2]
                await self.driver.store.queues.pause(queue, name == "pause")
                self.model.paused = self.model.paused - {queue} | (
                    {queue} if name == "pause" else set()
                )
            case "limit":
                await self._limit(QUEUES[x % 2], [None, 1, 3][x // 2 % 3], [None, 1, 2][y % 3])
            case "progress":
                await self._tell(x, y)
            case "tick":
                await self._tick([0.4, 1.0, 2.5, 7.0][x % 4])
            case _:
                await self._move(name, x)

    async def _limit(self, queue: str, most: int | None, of_key: int | None) -> None:
        values = {"max_running": most, "key_max_running": of_key}
        assert await self.driver.store.queues.update(queue, values)
        for limits, value in (
            (self.model.max_running, most),
            (self.model.key_max_running, of_key),
        ):
            limits.pop(queue, None)
            if value is not None:
                limits[queue] = value

    async def _submit(self, numbers: list[tuple[int, int]], slots: int = 0) -> None:
        specs = [
            spec(
                b"%d" % (y % 2),
                queue=QUEUES[x % 2],
                type=TYPES[(x // 32) % 3],
                priority=(x // 2) % 3,
                max_retries=(x // 8) % 4,
                ttl=[None, None, 3.0, 9.0][(y // 2) % 4],
                delay=[None, None, None, 4.0][(y // 8) % 4],
                key=[None, None, "k", "l"][(y // 32) % 4],
                timeout=[None, 5.0][(y // 128) % 2],
                unique=UNIQUE[(y // 256) % len(UNIQUE)],
                concurrency_key=[None, None, "c", "d"][(x // 128) % 4],
            )
            for x, y in numbers
        ]
        claims = [Claim(QUEUES, [WORKERS[0]] * slots)] if slots else []
        done = await self.driver.store.jobs.submit(new(*specs), claims)
        taken = {got.id: got for got in done.assigned}
        now = self.driver.clock.now()
        for one, result in zip(specs, done.results, strict=True):
            status, original = self.model.admits(one)
            assert result.status is status, (one, result)
            if status in (SubmitStatus.DUPLICATE, SubmitStatus.EXISTING):
                assert result.job_id == original
            if status is SubmitStatus.ACCEPTED:
                self.driver.accepted.add(result.job_id)
                self._superseded(one, result.job_id, done.superseded)
                job = await self.driver.job(result.job_id)
                self.model.add(one, result.job_id, job.seq)
                self.twins[job.seq] = Twin(result.job_id, job.seq, one, now, RULES)
        if slots:
            expected = self.model.claim(QUEUES, slots)
            assert {job.id for job in expected} == taken.keys()
            self._taken([(taken[job.id], job) for job in expected])

    def _superseded(self, one: JobSpec, job_id: str, outcomes: list[Outcome]) -> None:
        """Move the job whose place an accepted job has taken."""
        holder = self.model.supersede(one)
        if holder is not None:
            (outcome,) = (said for said in outcomes if said.job_id == holder.id)
            asked = Transition.superseded(holder.seq, job_id)
            self.twins[holder.seq].moved(asked, outcome, self.driver.clock.now())

    async def _claim(self, x: int, y: int) -> None:
        queues = (QUEUES[:1], QUEUES[1:], QUEUES)[x % 3]
        slots = 1 + y % 3
        types = MEANT[(y // 4) % len(MEANT)]
        assignments = await self.driver.claim(
            slots, queues=queues, worker_id=WORKERS[x % 2], types=types
        )
        expected = self.model.claim(queues, slots, types)
        assert [a.id for a in assignments] == [job.id for job in expected]
        self._taken(list(zip(assignments, expected, strict=True)))

    def _taken(self, pairs: list[tuple[Assignment, ModelJob]]) -> None:
        for got, job in pairs:
            assert got.attempt == job.attempt
            assert got.lease not in job.old_leases
            job.lease = got.lease
            job.old_leases.append(got.lease)
            self.twins[got.seq].assigned(got, self.driver.clock.now())

    async def _tell(self, x: int, y: int) -> None:
        """A word of some attempt, over or not. Both workers say it: only one of them may."""
        jobs = [job for job in self.model.jobs if job.old_leases]
        if not jobs:
            return
        job = jobs[x % len(jobs)]
        lease = job.old_leases[-1 - y % min(2, len(job.old_leases))]
        value = (y % 8) / 8
        for name in WORKERS:
            self.driver.store.workers.pulse(name, 1, [], [], {lease: Progress.of(value, "")})
        if job.lease == lease:
            job.told[lease] = value
        self._compare(await self.driver.job(job.id), job)

    async def _tick(self, seconds: float) -> None:
        self.driver.clock.advance(seconds)
        self.model.now += seconds
        while found := (await self.driver.store.upkeep.due(1_000)).transitions:
            for asked, outcome in zip(found, await self.driver.apply(*found), strict=True):
                assert outcome.applied, outcome
                self.twins[asked.seq].moved(asked, outcome, self.driver.clock.now())
        self.model.sweep()

    async def _move(self, name: str, x: int) -> None:
        if not self.model.jobs:
            return
        job = self.model.jobs[x % len(self.model.jobs)]
        lease = job.lease or 0
        if name == "request cancel":
            held = await self.driver.store.jobs.request_cancel(job.seq)
            assert (held is not None) == (job.state is State.RUNNING)
            job.cancel_requested |= held is not None
            self.twins[job.seq].live.cancel_requested |= held is not None
            return
        if name == "stale report":
            stale = job.old_leases[x % len(job.old_leases)] if job.old_leases else 1
            name, lease = "succeed", stale
        ran_for = [None, 0.0, 0.25, 3.0][(x // 16) % 4]
        asked = {
            "start": Transition.started(job.seq, lease),
            "succeed": Transition.succeeded(job.seq, lease, b"r", ran_for),
            "fail": Transition.failed(
                job.seq, lease, "boom", retryable=x % 5 != 0, ran_for=ran_for
            ),
            "lose": Transition.worker_lost(job.seq, lease, "gone"),
            "hand back": Transition.handed_back(job.seq, lease),
            "cancel": Transition.cancelled(job.seq),
            "retry by hand": Transition.retried_by_hand(job.seq),
        }[name]
        (outcome,) = await self.driver.apply(asked)
        allowed = self.model.move(name, job, lease, retryable=asked.retryable)
        assert outcome.applied == allowed, (name, job, outcome)
        self.twins[job.seq].moved(asked, outcome, self.driver.clock.now())
        self._compare(await self.driver.job(job.id), job)

    async def compare(self) -> None:
        found = {job.id: job for job in await self.driver.all_jobs()}
        assert found.keys() == {job.id for job in self.model.jobs}
        for expected in self.model.jobs:
            self._compare(found[expected.id], expected)
            twin = self.twins[expected.seq]
            history = await self.driver.store.reads.history(expected.id)
            assert history == [event_of(entry) for entry in twin.entries]
        for queue in QUEUES:
            depth = (await self.driver.stats(queue)).depth
            for state in State:
                assert depth.get(state, 0) == sum(
                    job.state is state and job.queue == queue for job in self.model.jobs
                )
        held = {h.lease for h in await self.driver.store.workers.held()}
        assert held == {job.lease for job in self.model.jobs if job.lease}

    def _compare(self, job: Job, expected: ModelJob) -> None:
        assert (job.state, job.attempt, job.retry_count, job.version) == (
            expected.state,
            expected.attempt,
            expected.retry_count,
            expected.version,
        ), expected
        assert (job.progress and job.progress.value) == expected.progress, expected
        assert replace(job, progress=None) == self.twins[job.seq].job


async def run(store_name: str, places: Places, operations: list[tuple[str, int, int]]) -> None:
    clock = ManualClock()
    driver = Driver(STORES[store_name](places.new, RULES, clock), clock, RULES)
    await driver.store.open()
    try:
        await driver.queue("q")
        await driver.queue("r", capacity=CAPACITY)
        for name in WORKERS:
            await driver.store.workers.register(worker(name))
        machine = Machine(driver)
        machine.model.now = clock.now()
        for operation in operations:
            await machine.step(*operation)
        await machine.compare()
        await driver.check()
    finally:
        await driver.store.close()
        places.close()  # the next history gets the same database, emptied


@pytest.mark.timeout(120 * FACTOR)  # fifteen histories, each with hundreds of calls to a server
@pytest.mark.req("jq:FR-009", "jq:FR-010")
@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(operations=OPERATIONS)
def test_a_store_does_what_the_model_does(store_name: str, places: Places, operations):
    with asyncio.Runner(loop_factory=kept.KEEPER.loop) as runner:
        runner.run(run(store_name, places, operations))
