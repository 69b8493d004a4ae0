"""What the load of the two designs asks for and counts, at a time that only its calls move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.taskqueue import load
from bench.taskqueue.figures import values
from bench.taskqueue.load import Measured
from bench.taskqueue.profile import Mix, Profile
from jobqueue.taskqueue import JobPage, JobState, JobStatus, Submitted

STEP = 0.125  # seconds that a call takes; times are sums of it, without a rounding


class Time:
    """Stands in for the module of that name."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now

    perf_counter = monotonic = time


class Client:
    """Answers every call after one step, and every job is done when it is accepted."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._ends: dict[str, int] = {}
        self._under_way = 0
        self.most_requests = self.most_jobs = 0  # under way in each of the two stretches
        self._read = False
        self.calls: list[tuple[str, float]] = []  # and when each was begun
        self.specs: set[tuple[str, int, int]] = set()

    async def _step(self, method: str) -> None:
        self.calls.append((method, self._time.now))
        self._under_way += 1
        if self._read:
            self.most_jobs = max(self.most_jobs, self._under_way)
        else:
            self.most_requests = max(self.most_requests, self._under_way)
        await asyncio.sleep(0)  # the others begin theirs
        self._under_way -= 1
        self._time.now += STEP

    async def submit_job(
        self, *, job_type: str, work_duration_ms: int, payload_size_bytes: int
    ) -> Submitted:
        await self._step("SubmitJob")
        self.specs.add((job_type, work_duration_ms, payload_size_bytes))
        job_id = f"job {len(self._ends)}"
        self._ends[job_id] = int(self._time.now * 1000)
        return Submitted(job_id, self._ends[job_id])

    async def get_job_status(self, job_id: str) -> JobState:
        self._read = True  # in a load of submits alone: the first stretch has ended
        await self._step("GetJobStatus")
        at = self._ends[job_id]
        return JobState(job_id, JobStatus.DONE, False, at, at, at, "")

    async def get_job_result(self, job_id: str) -> None:
        await self._step("GetJobResult")

    async def cancel_job(self, job_id: str, reason: str) -> None:
        await self._step("CancelJob")

    async def wait_result(self, job_id: str, timeout: float) -> None:
        await self._step("wait")

    async def list_jobs(self) -> JobPage:
        await self._step("ListJobs")
        return JobPage((), "")


async def apply(monkeypatch: pytest.MonkeyPatch, profile: Profile) -> tuple[Client, Measured]:
    time = Time()
    client: Any = Client(time)
    monkeypatch.setattr(load, "time", time)
    return client, await load.apply(client, profile)


@pytest.mark.req("tq:NFR-2")
@pytest.mark.parametrize("callers", [1, 3, 10])
async def test_as_many_callers_at_once_as_asked_for(monkeypatch, callers: int) -> None:
    profile = Profile(callers, warm_up=1.0, seconds=4.0, listings=0, mix=Mix(1, 0, 0))
    monkeypatch.setattr(load, "_READERS", 1)  # what follows the load is none
    client, _ = await apply(monkeypatch, profile)
    assert (client.most_requests, client.most_jobs) == (callers, callers)


@pytest.mark.req("tq:NFR-2", "tq:FAIR")
async def test_the_jobs_and_the_mix_are_those_asked_for(monkeypatch) -> None:
    profile = Profile(1, 20, 300, Mix(2, 1, 1, 0), warm_up=5.0, seconds=50.0, listings=7)
    client, measured = await apply(monkeypatch, profile)
    assert client.specs == {("noop", 20, 300)}
    assert measured.latencies["CancelJob"] == []
    counted = {method: len(taken) for method, taken in measured.latencies.items()}
    assert counted["ListJobs"] == 7
    assert counted["SubmitJob"] > counted["GetJobStatus"] > 0
    assert counted["SubmitJob"] > counted["GetJobResult"] > 0


@pytest.mark.req("tq:FAIR")
async def test_both_designs_are_asked_the_same_in_the_same_order(monkeypatch) -> None:
    profile = Profile(2, mix=Mix(3, 2, 1, 1), warm_up=1.0, seconds=8.0, listings=2)
    one, _ = await apply(monkeypatch, profile)
    other, _ = await apply(monkeypatch, profile)
    assert one.calls == other.calls
    assert {method for method, _ in one.calls} >= {"SubmitJob", "CancelJob", "ListJobs"}


@pytest.mark.req("tq:FAIR", "tq:NFR-3")
async def test_the_warm_up_is_not_counted_and_the_time_after_it_is(monkeypatch) -> None:
    profile = Profile(1, mix=Mix(1, 0, 0), warm_up=1.5, seconds=3.0, listings=0)
    client, measured = await apply(monkeypatch, profile)
    counted = round(3.0 / STEP)
    assert measured.latencies["SubmitJob"] == [STEP * 1000] * counted
    assert measured.requests_a_second == counted / 3.0
    assert measured.jobs == counted
    assert measured.jobs_a_second == counted / 3.0
    assert not measured.unfinished
    # The stretch of whole jobs has a warm-up of its own; a job of it is three calls.
    assert set(measured.to_done) == {STEP * 1000}
    assert len(measured.to_done) == counted // 3
    began = [at for method, at in client.calls if method == "SubmitJob"]
    assert began[0] == 1_000.0
    assert sum(at < 1_001.5 for at in began) == round(1.5 / STEP)  # and yet it was a load


@pytest.mark.req("tq:NFR-3")
def test_percentiles_are_those_of_every_answer() -> None:
    taken = [float(n) for n in range(1, 201)]
    measured = Measured({"SubmitJob": taken[::-1]}, requests_a_second=9.0, jobs_a_second=5.0)
    measured.to_done = taken
    found = {one.measure: (one.value, one.unit) for one in values(measured)}
    assert (found["requests"], found["jobs done"]) == ((9.0, "req/s"), (5.0, "jobs/s"))
    for what in ("SubmitJob", "submit→done"):
        assert [found[f"{what} p{one}"] for one in (50, 95, 99)] == [
            (101.0, "ms"),
            (191.0, "ms"),
            (199.0, "ms"),
        ]
