"""Random operations against a store and against a tiny model of it; then the checker judges."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobqueue.core.clock import ManualClock
from jobqueue.core.job import Job, SubmitStatus, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.retry import PROFILES
from jobqueue.core.store import Rules
from tests.stores.driver import NO_BACKOFF, Driver, spec
from tests.stores.every import STORES, Places
from tests.stores.model import Model, ModelJob

RULES = Rules(assignment_timeout=6.0, poison_after=3, key_ttl=25.0, watchdog_grace=1.0)
QUEUES = ("q", "r")
TYPES = ("", "a", "b")
MEANT = (None, None, frozenset("a"), frozenset(("a", "b")), frozenset(("", "unknown")))
CAPACITY = 6

# An operation is a name and numbers; what they mean depends on what there is at that moment.
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["submit"] * 3,
                "submit batch",
                *["claim"] * 3,
                *["start", "succeed", "fail", "lose", "hand back", "stale report"],
                *["cancel", "request cancel", "retry by hand", "pause", "resume"],
                *["tick"] * 3,
            ]
        ),
        st.integers(0, 2**16),
        st.integers(0, 2**16),
    ),
    max_size=60,
)


class Machine:
    """Does each operation to both and compares what they say."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.model = Model(RULES, PROFILES[NO_BACKOFF], CAPACITY)

    async def step(self, name: str, x: int, y: int) -> None:
        match name:
            case "submit":
                await self._submit([(x, y)])
            case "submit batch":
                await self._submit([(x + n * 7, y + n * 13) for n in range(4)])
            case "claim":
                await self._claim(x, y)
            case "pause" | "resume":
                queue = QUEUES[x % 2]
                await self.driver.store.pause_queue(queue, name == "pause")
                self.model.paused = self.model.paused - {queue} | (
                    {queue} if name == "pause" else set()
                )
            case "tick":
                await self._tick([0.4, 1.0, 2.5, 7.0][x % 4])
            case _:
                await self._move(name, x)

    async def _submit(self, numbers: list[tuple[int, int]]) -> None:
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
            )
            for x, y in numbers
        ]
        results = await self.driver.results(*specs)
        for one, result in zip(specs, results, strict=True):
            status, original = self.model.admits(one)
            assert result.status is status, (one, result)
            if status is SubmitStatus.DUPLICATE:
                assert result.job_id == original
            if status is SubmitStatus.ACCEPTED:
                job = await self.driver.job(result.job_id)
                self.model.add(one, result.job_id, job.seq)

    async def _claim(self, x: int, y: int) -> None:
        queues = (QUEUES[:1], QUEUES[1:], QUEUES)[x % 3]
        slots = 1 + y % 3
        types = MEANT[(y // 4) % len(MEANT)]
        assignments = await self.driver.claim(
            slots, queues=queues, worker_id=f"w{x % 2}", types=types
        )
        expected = self.model.claim(queues, slots, types)
        assert [a.id for a in assignments] == [job.id for job in expected]
        for assignment, job in zip(assignments, expected, strict=True):
            assert assignment.attempt == job.attempt
            assert assignment.lease not in job.old_leases
            job.lease = assignment.lease
            job.old_leases.append(assignment.lease)

    async def _tick(self, seconds: float) -> None:
        self.driver.clock.advance(seconds)
        self.model.now += seconds
        while (await self.driver.sweep()).transitions:
            pass
        self.model.sweep()

    async def _move(self, name: str, x: int) -> None:
        if not self.model.jobs:
            return
        job = self.model.jobs[x % len(self.model.jobs)]
        lease = job.lease or 0
        if name == "request cancel":
            held = await self.driver.store.request_cancel(job.seq)
            assert (held is not None) == (job.state is State.RUNNING)
            job.cancel_requested |= held is not None
            return
        if name == "stale report":
            stale = job.old_leases[x % len(job.old_leases)] if job.old_leases else 1
            name, lease = "succeed", stale
        asked = {
            "start": Transition.started(job.seq, lease),
            "succeed": Transition.succeeded(job.seq, lease, b"r"),
            "fail": Transition.failed(job.seq, lease, "boom", retryable=x % 5 != 0),
            "lose": Transition.worker_lost(job.seq, lease, "gone"),
            "hand back": Transition.handed_back(job.seq, lease),
            "cancel": Transition.cancelled(job.seq),
            "retry by hand": Transition.retried_by_hand(job.seq),
        }[name]
        (outcome,) = await self.driver.apply(asked)
        allowed = self.model.move(name, job, lease, retryable=asked.retryable)
        assert outcome.applied == allowed, (name, job, outcome)

    async def compare(self) -> None:
        found = {job.id: job for job in await self.driver.all_jobs()}
        assert found.keys() == {job.id for job in self.model.jobs}
        for expected in self.model.jobs:
            self._compare(found[expected.id], expected)
        for queue in QUEUES:
            depth = (await self.driver.stats(queue)).depth
            for state in State:
                assert depth.get(state, 0) == sum(
                    job.state is state and job.queue == queue for job in self.model.jobs
                )
        held = {h.lease for h in await self.driver.store.held()}
        assert held == {job.lease for job in self.model.jobs if job.lease}

    def _compare(self, job: Job, expected: ModelJob) -> None:
        assert (job.state, job.attempt, job.retry_count, job.version) == (
            expected.state,
            expected.attempt,
            expected.retry_count,
            expected.version,
        ), expected


async def run(store_name: str, places: Places, operations: list[tuple[str, int, int]]) -> None:
    clock = ManualClock()
    driver = Driver(STORES[store_name](places.new, RULES, clock), clock, RULES)
    await driver.store.open()
    try:
        await driver.queue("q")
        await driver.queue("r", capacity=CAPACITY)
        machine = Machine(driver)
        machine.model.now = clock.now()
        for operation in operations:
            await machine.step(*operation)
        await machine.compare()
        await driver.check()
    finally:
        await driver.store.close()


@pytest.mark.timeout(300)  # sixty histories, each with hundreds of calls to a server
@pytest.mark.req("jq:FR-009", "jq:FR-010")
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(operations=OPERATIONS)
def test_a_store_does_what_the_model_does(store_name: str, places: Places, operations):
    asyncio.run(run(store_name, places, operations))
