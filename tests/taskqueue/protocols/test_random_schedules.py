"""Clients, workers and all parts under random faults and delays, every run of them repeatable.

Each call between parts may fail, lose its answer, arrive twice, arrive again much later, or time
out and be carried out afterwards. When it is over, the rules of ``Rig.check`` hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobqueue.core.errors import (
    DeadlineExceeded,
    JobQueueError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.model import Spec, Status
from jobqueue.taskqueue.components.worker_loop import Output, WorkerLoop
from tests.examples import examples
from tests.taskqueue.protocols.faulty import Call, Failpoints, Fault
from tests.taskqueue.protocols.rig import Lines, Rig
from tests.virtual_time import VirtualTimeLoop

ERRORS = (Unavailable, DeadlineExceeded, OutcomeUnknown)
NAMED = 6  # jobs with a key, submitted by two clients each
NAMELESS = 8


class Chaos:
    """Draws what becomes of each call."""

    def __init__(self, rng: random.Random, weight: float) -> None:
        self._rng = rng
        self._weight = weight
        self._later: list[asyncio.Task[Any]] = []
        self.met: Counter[str] = Counter()

    def upset(self, points: Failpoints) -> None:
        points.choose = self.choose

    def choose(self, call: Call) -> Fault | None:
        kinds = ["fail", "lose", "late"]
        if call.request_id:
            kinds += ["twice", "echo"]
        kind = self._rng.choice(kinds) if self._rng.random() < self._weight else "slow"
        self.met[kind] += 1
        return getattr(self, f"_{kind}")

    def _error(self) -> JobQueueError:
        return self._rng.choice(ERRORS)("by chance")

    async def _pause(self, most: float = 0.02) -> None:
        await asyncio.sleep(self._rng.random() * most)

    async def _slow(self, call: Call) -> Any:
        await self._pause()
        answer = await call.go()
        await self._pause()
        return answer

    async def _fail(self, call: Call) -> Any:
        await self._pause()
        raise self._error()

    async def _lose(self, call: Call) -> Any:
        await self._slow(call)
        raise self._error()

    async def _twice(self, call: Call) -> Any:
        first = await self._slow(call)
        second = await self._slow(call)
        assert first == second
        return second

    async def _echo(self, call: Call) -> Any:
        """The request arrives a second time long after its answer."""
        answer = await self._slow(call)
        self._send_later(call)
        return answer

    async def _late(self, call: Call) -> Any:
        """The caller gives up on it before it arrives."""
        self._send_later(call)
        await self._pause()
        raise DeadlineExceeded("on its way")

    def _send_later(self, call: Call) -> None:
        self._later.append(asyncio.create_task(self._send(call)))

    async def _send(self, call: Call) -> None:
        await self._pause(2.0)
        with contextlib.suppress(JobQueueError):
            await call.go()

    async def over(self) -> None:
        await asyncio.gather(*self._later)


class Clients:
    """Submit, cancel and read, and never see a job leave its end."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self._rig = rig
        self._rng = rng
        self._ends: dict[str, Status] = {}

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.random())

    async def one(self, number: int, key: str) -> None:
        await self._pause()
        spec = Spec("t", self._rng.randrange(300), labels={"number": str(number)})
        spec = spec if not key else Spec("t", 100, labels={"number": str(number)})
        job_id = await self._submit(spec, key)
        if job_id is None:
            return
        for _ in range(self._rng.randrange(4)):
            await self._pause()
            await self._look(job_id)
            if self._rng.random() < 0.4:
                await self._cancel(job_id)
        await self._look(job_id)

    async def _submit(self, spec: Spec, key: str) -> str | None:
        for _ in range(4 if key else 1):
            try:
                return await self._rig.submit(spec, key)
            except JobQueueError:
                await self._pause()
        return None

    async def _cancel(self, job_id: str) -> None:
        known = self._ends.get(job_id)
        try:
            answer = await self._rig.gateway.cancel(job_id, "by chance")
        except NotFound:
            raise AssertionError(f"{job_id} was accepted, and is gone") from None
        except JobQueueError:
            return
        self._see(job_id, known, answer.current)

    async def _look(self, job_id: str) -> None:
        known = self._ends.get(job_id)
        try:
            envelope = await self._rig.gateway.result(job_id)
            record = await self._rig.gateway.status(job_id)
        except NotFound:
            raise AssertionError(f"{job_id} was accepted, and is gone") from None
        except JobQueueError:
            return
        if envelope is not None:
            self._see(job_id, known, envelope.status)
            known = envelope.status
        self._see(job_id, known, record.summary.status)

    def _see(self, job_id: str, known: Status | None, status: Status) -> None:
        """``known``: the end that was seen before this was asked."""
        assert known in (None, status), f"{job_id} left its end {known!r} for {status!r}"
        if status.terminal:
            self._ends[job_id] = status


async def run(seed: int, weight: float, lines: Lines) -> Counter[str]:
    rng = random.Random(seed)
    rig = Rig(lines)
    chaos = Chaos(rng, weight)
    for points in (rig.gateway_calls, rig.coordinator_calls, rig.worker_calls):
        chaos.upset(points)
    executed: Counter[str] = Counter()

    async def execute(spec: Spec) -> Output:
        executed[spec.labels["number"]] += 1
        await asyncio.sleep(spec.work_duration_ms / 1000)
        return Output(b"out")

    loops = [
        WorkerLoop(rig.coordination, execute, worker_id=f"w{number}", slots=2)
        for number in range(2)
    ]
    for loop in loops:
        await loop.start()
    await rig.reconciler.start()
    clients = Clients(rig, rng)
    keyed = [clients.one(number, f"key-{number}") for number in range(NAMED) for _ in range(2)]
    others = [clients.one(NAMED + number, "") for number in range(NAMELESS)]
    await asyncio.gather(*keyed, *others)
    await chaos.over()
    for points in (rig.gateway_calls, rig.coordinator_calls, rig.worker_calls):
        points.choose = lambda call: None
    await asyncio.sleep(10)  # what was asked for is worked off without faults
    await rig.reconciler.stop()
    await rig.gateway.stop()
    for loop in loops:
        await loop.stop(10.0)
    await rig.coordinator.stop()
    await chaos.over()
    await rig.check()
    assert not [number for number, count in executed.items() if count > 1], "executed twice"
    assert rig.coordinator.assigned == 0
    return chaos.met


def run_once(seed: int, weight: float) -> Counter[str]:
    lines = Lines()
    level = journal.log.level
    journal.log.addHandler(lines)
    journal.log.setLevel(logging.INFO)
    drawn = random.getstate()
    random.seed(seed)  # the worker draws its pauses there
    try:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(run(seed, weight, lines))
    finally:
        random.setstate(drawn)
        journal.log.setLevel(level)
        journal.log.removeHandler(lines)


@pytest.mark.req("tq:NFR-5", "tq:SUBMIT", "tq:DISPATCH", "tq:TERMINAL", "tq:CANCEL", "tq:LOCK-4")
@settings(max_examples=examples(30), derandomize=True, deadline=None, print_blob=True)
@given(seed=st.integers(0, 2**32 - 1), weight=st.sampled_from([0.0, 0.05, 0.2, 0.4]))
def test_whatever_goes_wrong_nothing_accepted_is_lost_or_done_twice(seed, weight):
    run_once(seed, weight)


def test_a_run_meets_every_kind_of_fault_and_can_be_repeated():
    first = run_once(7, 0.3)
    assert set(first) == {"slow", "fail", "lose", "twice", "echo", "late"}
    assert run_once(7, 0.3) == first


@pytest.mark.req("tq:NFR-5", "tq:SUBMIT", "tq:DISPATCH", "tq:TERMINAL", "tq:CANCEL")
def test_without_faults_every_job_ends_and_nothing_is_an_anomaly():
    lines = Lines()
    journal.log.addHandler(lines)
    try:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(run(1, 0.0, lines))
    finally:
        journal.log.removeHandler(lines)
    assert not lines.anomalies()
