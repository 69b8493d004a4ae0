"""The worker: slots, the pace of asking, reports until they are answered, the stop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from jobqueue.core.errors import Internal, JobQueueError, NotFound, Unavailable
from jobqueue.taskqueue.components.model import (
    HEARTBEAT_INTERVAL_MS,
    MAX_SUMMARY,
    OUTPUT_TOO_LARGE,
    WORKER_TIMEOUT_MS,
    Report,
    Spec,
    Status,
    Work,
    WorkOutcome,
    checksum,
)
from jobqueue.taskqueue.components.worker_loop import Output, WorkerLoop
from tests.taskqueue.protocols.faulty import fails, loses_reply
from tests.taskqueue.protocols.rig import Lines, Rig
from tests.taskqueue.protocols.virtual_time import until, virtual_time

LATENCY = 0.001
HINT = 0.2


def now() -> float:
    return asyncio.get_running_loop().time()


class Script:
    """A coordinator that does as it is told, and counts."""

    def __init__(self) -> None:
        self.jobs: deque[Work | JobQueueError] = deque()
        self.report_errors: deque[JobQueueError] = deque()
        self.beat_errors: deque[Exception] = deque()
        self.hint_ms = 200
        self.beats: list[float] = []
        self.running: list[list[str]] = []
        self.incarnations: set[str] = set()
        self.fetches: list[tuple[float, str]] = []
        self.asking = 0
        self.most_asking = 0
        self.reports: list[tuple[Report, str]] = []
        self.report_times: list[float] = []

    def add(self, count: int) -> None:
        first = len(self.jobs)
        self.jobs.extend(Work(f"j{first + n}", Spec("t")) for n in range(count))

    async def heartbeat(
        self,
        worker_id: str,
        at_ms: int,
        capacity: int,
        *,
        incarnation: str = "",
        running: Sequence[str] = (),
    ) -> int:
        self.beats.append(now())
        self.running.append(list(running))
        self.incarnations.add(incarnation)
        if self.beat_errors:
            raise self.beat_errors.popleft()
        return HEARTBEAT_INTERVAL_MS

    async def fetch(self, worker_id: str, *, request_id: str) -> Work:
        self.fetches.append((now(), request_id))
        self.asking += 1
        self.most_asking = max(self.most_asking, self.asking)
        await asyncio.sleep(LATENCY)
        self.asking -= 1
        answer = self.jobs.popleft() if self.jobs else Work(retry_after_ms=self.hint_ms)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def report(self, report: Report, *, request_id: str) -> bool:
        self.reports.append((report, request_id))
        self.report_times.append(now())
        await asyncio.sleep(LATENCY)
        if self.report_errors:
            raise self.report_errors.popleft()
        return True


class Waiting:
    """The work of jobs: they wait for their release, and are counted meanwhile."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.begun = 0

    async def __call__(self, spec: Spec) -> Output:
        self.begun += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.go_on.wait()
        self.inside -= 1
        return Output(b"out", "made")


async def at_once(spec: Spec) -> Output:
    return Output(b"out", "made")


@asynccontextmanager
async def running(script: Script, execute=at_once, slots: int = 1) -> AsyncIterator[WorkerLoop]:
    loop = WorkerLoop(script, execute, worker_id="w", slots=slots, max_output_bytes=8)
    await loop.start()
    try:
        yield loop
    finally:
        await loop.stop(1.0)


# -- slots and pace --------------------------------------------------------------------------------


@pytest.mark.req("tq:FAIR", "tq:FR-6")
@pytest.mark.parametrize("slots", [1, 3, 6])
@virtual_time
async def test_no_more_jobs_at_once_than_slots(slots):
    script, work = Script(), Waiting()
    script.add(20)
    async with running(script, work, slots) as loop:
        await until(lambda: work.inside == slots)
        await asyncio.sleep(10)
        assert work.begun == work.most == loop.running == slots
        work.go_on.set()
        await until(lambda: len(script.reports) == 20)
        assert work.most == slots
        await until(lambda: loop.running == 0)


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-13")
@pytest.mark.parametrize("slots", [1, 6])
@pytest.mark.parametrize("hint_ms", [50, 200, 1_000])
@virtual_time
async def test_an_idle_worker_asks_once_in_each_hint_for_all_its_slots(slots, hint_ms):
    script = Script()
    script.hint_ms = hint_ms
    async with running(script, slots=slots):
        await asyncio.sleep(2 * HINT + LATENCY)  # the slots have asked once each, and fell idle
        script.fetches.clear()
        script.most_asking = 0
        await asyncio.sleep(30)
    times = [at for at, _ in script.fetches]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps
    assert {round(gap, 6) for gap in gaps} == {round(hint_ms / 1000 + LATENCY, 6)}
    assert script.most_asking == 1


@pytest.mark.req("tq:LOCK-13")
@virtual_time
async def test_a_hint_of_nothing_does_not_make_it_spin():
    script = Script()
    script.hint_ms = 0
    async with running(script):
        await asyncio.sleep(10)
    assert len(script.fetches) <= 10 / 0.05 + 1


@pytest.mark.req("tq:LIVENESS")
@virtual_time
async def test_after_work_it_asks_again_at_once_and_wakes_the_other_slots():
    script, work = Script(), Waiting()
    async with running(script, work, slots=4):
        await asyncio.sleep(5)
        script.fetches.clear()
        script.add(4)
        await until(lambda: work.inside == 4)
        begin, end = script.fetches[0][0], script.fetches[-1][0]
        assert end - begin < HINT  # one hint was waited for, not four
        assert len(script.fetches) == 4
        work.go_on.set()
        await until(lambda: len(script.reports) == 4)


@pytest.mark.req("tq:LIVENESS")
@virtual_time
async def test_a_slot_asks_without_a_pause_while_there_is_work():
    script = Script()
    script.add(50)
    async with running(script):
        await until(lambda: len(script.reports) == 50)
        assert now() < HINT * 2


# -- lost answers ----------------------------------------------------------------------------------


@pytest.mark.req("tq:NFR-5", "tq:DISPATCH")
@virtual_time
async def test_a_fetch_is_asked_again_by_the_same_id_until_it_is_answered(lines: Lines):
    script = Script()
    script.jobs.extend([Unavailable("a"), Unavailable("b"), Internal("c"), Work("j", Spec("t"))])
    async with running(script):
        await until(lambda: len(script.reports) == 1)
        ids = [request_id for _, request_id in script.fetches[:4]]
        assert len(set(ids)) == 1
        await asyncio.sleep(1)
        assert script.fetches[4][1] != ids[0]
    assert len(lines.of("fetch_failed")) == 1  # said once, not at every attempt


@pytest.mark.req("tq:RETRY", "tq:NFR-5")
@pytest.mark.parametrize(
    "error", [Unavailable("down"), Internal("a defect")], ids=["down", "defect"]
)
@pytest.mark.parametrize("what", ["fetch", "report"])
@virtual_time
async def test_calls_that_fail_are_made_again_after_pauses_that_grow(lines: Lines, what, error):
    """Each call has made its own attempts: to hurry would double them."""
    script = Script()
    if what == "fetch":
        script.jobs.extend([error] * 6)
    script.add(1)
    script.report_errors.extend([error] * 6 if what == "report" else [])
    async with running(script):
        await until(lambda: len(script.reports) == (7 if what == "report" else 1))
    times = script.report_times if what == "report" else [at for at, _ in script.fetches][:7]
    pauses = [after - before - LATENCY for before, after in itertools.pairwise(times)]
    for pause, longest in zip(pauses, [0.2, 0.4, 0.8, 1.6, 2.0, 2.0], strict=True):
        assert longest / 2 <= pause + 1e-6
        assert pause <= longest + 0.002


@pytest.mark.req("tq:NFR-5", "tq:TERMINAL")
@virtual_time
async def test_a_report_is_sent_again_by_the_same_id_until_it_is_answered(lines: Lines):
    script = Script()
    script.add(1)
    script.report_errors.extend([Unavailable("a"), Internal("b"), Unavailable("c")])
    async with running(script) as loop:
        await until(lambda: len(script.reports) == 4 and loop.running == 0)
    assert len({request_id for _, request_id in script.reports}) == 1
    assert len({report.job_id for report, _ in script.reports}) == 1
    assert len(lines.of("report_failed", "j0")) == 1


@virtual_time
async def test_a_report_that_is_refused_for_good_is_given_up_and_the_slot_goes_on(lines: Lines):
    script = Script()
    script.add(2)
    script.report_errors.append(NotFound("gone"))
    async with running(script) as loop:
        await until(lambda: len(script.reports) == 2 and loop.running == 0)
    assert [report.job_id for report, _ in script.reports] == ["j0", "j1"]
    assert lines.of("report_failed", "j0")


@virtual_time
async def test_a_defect_in_a_call_costs_no_slot(lines: Lines):
    script = Script()
    script.add(2)
    script.report_errors.append(ZeroDivisionError("oops"))  # type: ignore[arg-type]
    async with running(script):
        await until(lambda: len(script.reports) == 2)
    assert lines.of("slot_failed")


@pytest.mark.req("tq:NFR-5", "tq:DISPATCH", "tq:TERMINAL")
@virtual_time
async def test_with_the_real_coordinator_lost_answers_lose_no_job(rig: Rig):
    jobs = [await rig.submit() for _ in range(3)]
    rig.worker_calls.on("coordination.fetch", loses_reply(), fails(), loses_reply())
    rig.worker_calls.on("coordination.report", loses_reply(), fails(), loses_reply())
    executed: list[Spec] = []

    async def execute(spec: Spec) -> Output:
        executed.append(spec)
        return Output()

    loop = WorkerLoop(rig.coordination, execute, worker_id="w", slots=1)
    await loop.start()
    await until(lambda: rig.ledger.unfinished == 0)
    await loop.stop(1.0)
    assert len(executed) == len(jobs)
    await rig.check()


# -- outcomes --------------------------------------------------------------------------------------


@virtual_time
async def test_what_a_job_made_is_reported_with_its_checksum_and_time():
    script = Script()
    script.add(1)

    async def execute(spec: Spec) -> Output:
        return Output(b"12345678", "just fits")

    async with running(script, execute):
        await until(lambda: bool(script.reports))
    report, _ = script.reports[0]
    assert report.outcome is WorkOutcome.SUCCEEDED
    assert (report.output, report.output_summary) == (b"12345678", "just fits")
    assert report.checksum == checksum(b"12345678")
    assert report.failure_reason == ""


@pytest.mark.req("tq:RESULT", "tq:LOCK-18")
@virtual_time
async def test_an_output_over_the_cap_is_not_sent_but_reported_as_a_failure():
    script = Script()
    script.add(1)

    async def execute(spec: Spec) -> Output:
        return Output(b"123456789", "too much")

    async with running(script, execute):
        await until(lambda: bool(script.reports))
    report, _ = script.reports[0]
    assert report.outcome is WorkOutcome.FAILED
    assert report.failure_reason.startswith(OUTPUT_TOO_LARGE)
    assert report.output == b""
    assert report.checksum == checksum(b"")


@pytest.mark.req("tq:TERMINAL", "tq:FR-3")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("boom"), "boom"),
        (RuntimeError(), "RuntimeError"),
        (RuntimeError("x" * 10_000), "x" * MAX_SUMMARY),
        (RuntimeError("\ud800"), "?"),
    ],
    ids=["text", "no text", "long text", "text that no message can carry"],
)
@virtual_time
async def test_an_exception_is_a_failure_and_its_text_the_reason(error, reason):
    script = Script()
    script.add(1)

    async def execute(spec: Spec) -> Output:
        raise error

    async with running(script, execute):
        await until(lambda: bool(script.reports))
    report, _ = script.reports[0]
    assert (report.outcome, report.failure_reason) == (WorkOutcome.FAILED, reason)


@pytest.mark.req("tq:RESULT")
@virtual_time
async def test_a_runtime_is_never_less_than_the_job_took(monkeypatch):
    script = Script()
    script.add(1)
    times = iter([10.0, 10.0301])
    told = SimpleNamespace(monotonic=lambda: next(times), time=time.time)
    monkeypatch.setattr("jobqueue.taskqueue.components.worker_loop.time", told)
    async with running(script):
        await until(lambda: len(script.reports) == 1)
    assert script.reports[0][0].runtime_ms == 31


# -- heartbeats ------------------------------------------------------------------------------------


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-32", "tq:LOCK-9")
@virtual_time
async def test_a_beat_every_second_beginning_at_once(lines: Lines):
    script = Script()
    async with running(script):
        assert script.beats == [0.0]  # tried before start returns
        assert lines.of("heartbeat")
        await asyncio.sleep(5.5)
        assert script.beats == pytest.approx([0, 1, 2, 3, 4, 5])


@pytest.mark.req("tq:LIVENESS")
@virtual_time
async def test_beats_say_which_start_of_the_worker_they_are_of():
    script = Script()
    for starts in (1, 2):
        async with running(script):
            await asyncio.sleep(2.5)
        assert len(script.incarnations) == starts
    assert "" not in script.incarnations


@pytest.mark.req("tq:LIVENESS", "tq:NFR-5")
@virtual_time
async def test_beats_say_which_jobs_the_worker_has_until_it_has_reported_them():
    script, waiting = Script(), Waiting()
    script.add(2)
    script.report_errors.extend([Unavailable("down")] * 8)
    async with running(script, waiting, slots=2):
        await asyncio.sleep(2.5)
        assert script.running[-1] == ["j0", "j1"]
        waiting.go_on.set()
        await asyncio.sleep(1.0)
        assert script.running[-1] == ["j0", "j1"]  # not reported yet
        await until(lambda: script.running[-1] == [])


@pytest.mark.req("tq:LIVENESS", "tq:LOG")
@virtual_time
async def test_beats_that_fail_are_said_once_and_go_on(lines: Lines):
    script = Script()
    script.beat_errors.extend([Unavailable("down"), ZeroDivisionError("oops"), Unavailable("x")])
    async with running(script):
        await asyncio.sleep(4.5)
        assert len(script.beats) == 5
    assert len(lines.of("heartbeat_failed")) == 1
    assert len(lines.of("heartbeat")) == 1


@pytest.mark.req("tq:LIVENESS", "tq:LOCK-9", "tq:NFR-5")
@virtual_time
async def test_a_worker_that_cannot_beat_gets_no_work_after_4_s_and_again_when_it_can(lines):
    rig = Rig(lines)
    rig.monotonic = now
    loop = WorkerLoop(rig.coordination, at_once, worker_id="w", slots=2)
    await loop.start()
    first_one = await rig.submit()
    await until(lambda: rig.ledger.unfinished == 0)
    assert await rig.status(first_one) is Status.DONE
    silent_from = now()
    rig.worker_calls.choose = lambda call: (
        fails() if call.point == "coordination.heartbeat" else None
    )
    await asyncio.sleep(WORKER_TIMEOUT_MS / 1000)
    job_id = await rig.submit()
    await asyncio.sleep(10)
    assert now() - silent_from > WORKER_TIMEOUT_MS / 1000
    assert await rig.status(job_id) is Status.QUEUED
    rig.worker_calls.choose = lambda call: None
    await until(lambda: rig.ledger.unfinished == 0)
    await loop.stop(1.0)
    await rig.check()


# -- stop ------------------------------------------------------------------------------------------


@pytest.mark.req("tq:NFR-5")
@virtual_time
async def test_a_stop_finishes_and_reports_what_runs_and_beats_meanwhile():
    script, work = Script(), Waiting()
    script.add(5)
    loop = WorkerLoop(script, work, worker_id="w", slots=2)
    await loop.start()
    await until(lambda: work.inside == 2)
    stopping = asyncio.create_task(loop.stop(60.0))
    beats = len(script.beats)
    await asyncio.sleep(10)
    assert len(script.beats) == beats + 10
    assert not stopping.done()
    work.go_on.set()
    await stopping
    assert work.begun == len(script.reports) == 2  # no more were taken
    after = len(script.beats)
    await asyncio.sleep(5)
    assert len(script.beats) == after


@virtual_time
async def test_a_stop_of_an_idle_worker_is_immediate():
    script = Script()
    loop = WorkerLoop(script, at_once, worker_id="w", slots=6)
    await loop.start()
    await asyncio.sleep(5)
    began = now()
    await loop.stop(60.0)
    assert now() - began <= LATENCY  # a fetch that is under way is waited for


@pytest.mark.req("tq:NFR-5", "tq:LOG")
@virtual_time
async def test_a_job_that_takes_longer_than_the_stop_is_cut_off_and_named(lines: Lines):
    script, work = Script(), Waiting()
    script.add(1)
    loop = WorkerLoop(script, work, worker_id="w", slots=2)
    await loop.start()
    await until(lambda: work.inside == 1)
    began = now()
    await loop.stop(3.0)
    assert now() - began == pytest.approx(3.0)
    assert [line.__dict__["job_id"] for line in lines.of("stopped_early")] == ["j0"]
    assert not script.reports


@pytest.mark.req("tq:NFR-5", "tq:LOG")
@virtual_time
async def test_a_stop_with_a_fetch_unanswered_says_so(lines: Lines):
    script = Script()
    script.jobs.extend([Unavailable("down")] * 50)
    loop = WorkerLoop(script, at_once, worker_id="w", slots=1)
    await loop.start()
    await asyncio.sleep(2)
    await loop.stop(60.0)
    assert lines.of("stopped_early")


@virtual_time
async def test_a_job_that_comes_while_the_worker_stops_is_executed():
    script = Script()
    script.add(1)
    loop = WorkerLoop(script, at_once, worker_id="w", slots=1)
    await loop.start()
    await until(lambda: script.asking == 1)
    await loop.stop(60.0)
    assert [report.job_id for report, _ in script.reports] == ["j0"]
