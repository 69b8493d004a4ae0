"""Batch handlers: jobs are collected, run in one call, and end each in its own way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Assignment, Transition, WorkerStatus
from jobqueue.core.lifecycle import Move
from jobqueue.core.progress import Progress
from jobqueue.tasks.context import Abort, Context, RetryLater
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker.execution import Endings, Execution
from jobqueue.worker.executors.batch import BatchExecutor
from jobqueue.worker.registry import Registry
from jobqueue.worker.slots import WaitingSlots
from tests import patience
from tests.taskqueue.protocols.virtual_time import virtual_time
from tests.worker.fakes import FakeServer, Worker, registry

LONG = 60.0  # seconds that no test waits: the batch is full before, or something else starts it


def numbers(server: FakeServer, count: int, **fields: Any) -> list[Assignment]:
    """Hand out that many jobs of the task ``take`` in one message."""
    return payloads(server, *(b'{"ns": %d}' % n for n in range(count)), **fields)


def payloads(server: FakeServer, *given: bytes, **fields: Any) -> list[Assignment]:
    jobs = [server.job("take", payload, **fields) for payload in given]
    server.hand_out(jobs)
    return jobs


async def ends(server: FakeServer, jobs: Sequence[Assignment]) -> list[Transition]:
    return [await server.end(job) for job in jobs]


def tasks(fn: Callable[..., Any], batch: int = 4, wait: float = LONG, **options: Any) -> Registry:
    return registry(fn, batch=batch, batch_wait=wait, **options)


async def doubled(ns: list[int]) -> list[int]:
    return [2 * n for n in ns]


# -- what the handler gets, and what its jobs get from it ------------------------------------------


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_full_batch_is_one_call_and_each_job_gets_its_result(
    server: FakeServer, kind: str
) -> None:
    calls: list[list[int]] = []

    async def on_loop(ns: list[int], contexts: list[Context]) -> list[str]:
        return in_thread(ns, contexts)

    def in_thread(ns: list[int], contexts: list[Context]) -> list[str]:
        calls.append(ns)
        return [f"{n} of {ctx.job_id}" for n, ctx in zip(ns, contexts, strict=True)]

    made = Registry()
    options = TaskOptions(batch=4, batch_wait=LONG)
    made.add(define(on_loop if kind == "async def" else in_thread, name="take", options=options))
    async with Worker(server, tasks=made, concurrency=4) as worker:
        jobs = numbers(server, 4)
        reports = await ends(server, jobs)
        assert [report.move for report in reports] == [Move.SUCCEED] * 4
        assert [report.result for report in reports] == [
            b'"%d of %s"' % (n, job.id.encode()) for n, job in enumerate(jobs)
        ]
        await server.until(lambda: server.free == 4)
        assert worker.running == 0
    assert calls == [[0, 1, 2, 3]]


async def test_an_exception_in_the_list_fails_its_job_alone(server: FakeServer) -> None:
    class Broken(Exception):
        pass

    def mend(n: int) -> int:
        if n:
            raise Broken(n)
        return n

    async def take(ns: list[int]) -> list[int | BaseException]:
        async def one(n: int) -> int:
            return mend(n)

        kept = await asyncio.gather(one(0), one(1), return_exceptions=True)
        same = Broken("same")
        return [*kept, Abort("never"), RetryLater(7.5), same, same]

    async with Worker(server, tasks=tasks(take, 6), concurrency=6):
        good, bad, never, later, one, other = await ends(server, numbers(server, 6))
    assert (good.move, good.result) == (Move.SUCCEED, b"0")
    assert (bad.move, bad.retryable) == (Move.FAIL, True)
    assert bad.error.startswith("test_an_exception_in_the_list_fails_its_job_alone.<locals>.Broken")
    assert "return mend(n)" in bad.error
    assert "raise Broken(n)" in bad.error
    assert "executors/batch.py" not in bad.error
    assert (never.retryable, never.error) == (False, "Abort: never")
    assert (later.retryable, later.retry_after) == (True, 7.5)
    assert one.error == other.error
    assert one.error.endswith("Broken: same")


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_handler_that_raises_fails_all_jobs(
    server: FakeServer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def on_loop(ns: list[int]) -> list[int]:
        return in_thread(ns)

    def in_thread(ns: list[int]) -> list[int]:
        raise OSError("the index is away")

    made = Registry()
    options = TaskOptions(batch=3, batch_wait=LONG, backoff=(4.0,))
    made.add(define(on_loop if kind == "async def" else in_thread, name="take", options=options))
    async with Worker(server, tasks=made, concurrency=3):
        reports = await ends(server, numbers(server, 3))
    for report in reports:
        assert (report.move, report.retryable, report.retry_after) == (Move.FAIL, True, 4.0)
        assert report.error.startswith("OSError: the index is away\n")
        assert 'raise OSError("the index is away")' in report.error
        assert "executors/batch.py" not in report.error
    lines = [one for one in caplog.records if "failed after" in one.getMessage()]
    assert len(lines) == 3
    assert [one.exc_text is not None for one in lines] == [True, False, False]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([1, 2], "it returned 2 for 3 jobs"),
        ({1, 2, 3}, "it returned `set`"),
        ("abc", "it returned `str`"),
    ],
)
async def test_a_list_that_does_not_fit_fails_all_jobs_without_retries(
    server: FakeServer, returned: Any, says: str
) -> None:
    async def take(ns: list[int]) -> list[Any]:
        return returned

    async with Worker(server, tasks=tasks(take, 3), concurrency=3):
        for report in await ends(server, numbers(server, 3)):
            assert (report.move, report.retryable) == (Move.FAIL, False)
            assert report.error.startswith("InvalidArgument: result: a batch handler must return")
            assert says in report.error


async def test_none_is_no_result_for_each_job(server: FakeServer) -> None:
    async def take(ns: list[int]) -> None:
        return None

    async with Worker(server, tasks=tasks(take, 2), concurrency=2):
        for report in await ends(server, numbers(server, 2)):
            assert (report.move, report.result) == (Move.SUCCEED, None)


async def test_a_result_of_another_type_fails_its_job_alone(server: FakeServer) -> None:
    async def take(ns: list[int]) -> list[int]:
        return [0, "one"]  # type: ignore[list-item]

    async with Worker(server, tasks=tasks(take, 2), concurrency=2):
        good, bad = await ends(server, numbers(server, 2))
    assert good.result == b"0"
    assert bad.error == (
        "task 'take': result: expected `int`, got `str`; the annotation says `int`"
    )


async def test_a_payload_that_does_not_fit_fails_its_job_alone(server: FakeServer) -> None:
    async def take(ns: list[int], words: list[str]) -> list[str]:
        return [word * n for n, word in zip(ns, words, strict=True)]

    async with Worker(server, tasks=tasks(take, 3), concurrency=3):
        given = ({"ns": 2, "words": "a"}, {"ns": "2", "words": "b"}, {"ns": 1, "words": "c"})
        jobs = payloads(server, *(json.dumps(one).encode() for one in given))
        first, wrong, last = await ends(server, jobs)
    assert (first.result, last.result) == (b'"aa"', b'"c"')
    assert wrong.error == "InvalidArgument: ns: expected `int`, got `str`"
    assert not wrong.retryable


async def test_lines_of_the_handler_name_the_batch(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    from jobqueue.core.attempt import current_attempt

    fields: list[Any] = []

    def take(ns: list[int]) -> None:
        attempt = current_attempt()
        assert attempt is not None
        fields.append(attempt.log_fields())

    async with Worker(server, tasks=tasks(take, 2, 0.0), concurrency=4):
        await ends(server, numbers(server, 2))
        (alone,) = numbers(server, 1)
        await server.end(alone)
    assert fields[0] == {"type": "take", "batch": 2}
    assert fields[1]["job_id"] == alone.id


async def test_progress_of_one_job_is_its_own(server: FakeServer) -> None:
    go = asyncio.Event()

    async def take(contexts: list[Context]) -> None:
        contexts[1].progress(0.5, "half")
        await go.wait()

    async with Worker(server, tasks=tasks(take, 2), concurrency=2, heartbeat_interval=0.02):
        jobs = payloads(server, b"{}", b"{}")
        limit = patience.Limit(10)
        while not any(server.progress):
            assert not limit.over
            await asyncio.sleep(0.002)
        go.set()
        await ends(server, jobs)
    assert [one for one in server.progress if one] == [{jobs[1].lease: Progress.of(0.5, "half")}]


# -- when a batch starts ---------------------------------------------------------------------------


class Recorder:
    """A host that notes when jobs begin and end, by the loop's clock."""

    def __init__(self) -> None:
        self.began: list[tuple[float, str]] = []
        self.reports: list[Transition] = []

    def begin(self, execution: Execution) -> bool:
        execution.begun = time.monotonic()
        self.began.append((execution.begun, execution.assignment.id))
        return True

    def begun(self, execution: Execution) -> None: ...

    def advanced(self, lease: int, progress: Progress) -> None: ...

    async def completing(self, execution: Execution, needs_start: bool) -> None: ...

    def ended(self, execution: Execution, report: Transition) -> None:
        execution.ended = True
        self.reports.append(report)


def arrivals(executor: BatchExecutor, batch: int, wait: float) -> Callable[[int], None]:
    definition = define(doubled, options=TaskOptions(batch=batch, batch_wait=wait))
    server, waiting = FakeServer(), WaitingSlots(Worker(FakeServer()).settings)

    def arrive(n: int) -> None:
        job = server.job("doubled", b'{"ns": %d}' % n)
        executor.submit(Execution(job, definition, executor, time.monotonic(), waiting))

    return arrive


@virtual_time
async def test_a_batch_starts_when_it_is_full_or_its_wait_is_over() -> None:
    host = Recorder()
    executor = BatchExecutor(host, Endings(1000), 100)
    arrive = arrivals(executor, batch=3, wait=2.0)
    for n, pause in enumerate([0.0, 0.5, 0.5, 0.0, 1.5, 10.0]):
        await asyncio.sleep(pause)
        arrive(n)
    await asyncio.sleep(10.0)
    # The third fills a batch at 1.0; the fourth begins one that closes at 3.0, with the fifth.
    assert host.began == [
        *((1.0, f"job-{n}") for n in (1, 2, 3)),
        *((3.0, f"job-{n}") for n in (4, 5)),
        (14.5, "job-6"),
    ]
    assert [report.result for report in host.reports] == [b"%d" % (2 * n) for n in range(6)]


@virtual_time
async def test_a_batch_is_no_larger_than_the_worker() -> None:
    """A task that is defined while the worker runs may have a batch above the worker's slots."""
    host = Recorder()
    arrive = arrivals(BatchExecutor(host, Endings(1000), 2), batch=100, wait=50.0)
    arrive(0)
    arrive(1)
    await asyncio.sleep(1.0)
    assert len(host.reports) == 2


async def test_jobs_of_one_message_are_one_batch_without_a_wait(server: FakeServer) -> None:
    sizes: list[int] = []

    async def take(ns: list[int]) -> None:
        sizes.append(len(ns))

    async with Worker(server, tasks=tasks(take, 10, 0.0), concurrency=10):
        await ends(server, numbers(server, 5))
        await ends(server, numbers(server, 1))
    assert sizes == [5, 1]


async def test_an_expired_job_is_left_out(server: FakeServer) -> None:
    async with Worker(server, tasks=registry_of(doubled, 2, LONG), concurrency=2):
        expired, good = (
            server.job("take", b'{"ns": 1}', expires_in=0.0),
            server.job("take", b'{"ns": 2}'),
        )
        server.hand_out([expired, good])
        assert (await server.end(expired)).move is Move.HAND_BACK
        assert (await server.end(good)).result == b"4"


def registry_of(fn: Callable[..., Any], batch: int, wait: float) -> Registry:
    made = Registry()
    made.add(define(fn, name="take", options=TaskOptions(batch=batch, batch_wait=wait)))
    return made


# -- timeouts and cancels --------------------------------------------------------------------------


async def test_the_shortest_timeout_is_that_of_all_jobs(server: FakeServer) -> None:
    interrupted: list[int] = []

    async def take(ns: list[int]) -> None:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            interrupted.append(len(ns))
            raise

    async with Worker(server, tasks=tasks(take, 3), concurrency=3) as worker:
        jobs = [server.job("take", b'{"ns": 0}', timeout=timeout) for timeout in (30.0, 0.05, None)]
        server.hand_out(jobs)
        long, short, none = await ends(server, jobs)
        assert {one.move for one in (long, short, none)} == {Move.TIME_OUT}
        shared = "timed out after 0.05 s, the shortest timeout of 3 jobs in one batch"
        assert (long.error, short.error, none.error) == (shared, "timed out after 0.05 s", shared)
        await server.until(lambda: server.free == 3)
        assert worker.running == 0
    assert interrupted == [3]


async def test_a_thread_that_does_not_end_keeps_the_slots_of_its_jobs(server: FakeServer) -> None:
    release = threading.Event()
    flags: list[bool] = []

    def take(ns: list[int], contexts: list[Context]) -> None:
        release.wait(patience.longest(20))
        flags.extend(ctx.cancelled for ctx in contexts)

    async with Worker(server, tasks=tasks(take, 2), concurrency=2) as worker:
        jobs = numbers(server, 2, timeout=0.05)
        assert {one.move for one in await ends(server, jobs)} == {Move.TIME_OUT}
        assert (server.free, worker.running, worker.overrun) == (0, 2, 2)
        release.set()
        await server.until(lambda: server.free == 2)
    assert flags == [True, True]
    assert len(server.ends()) == 2


async def test_a_job_that_is_cancelled_before_the_start_is_left_out(server: FakeServer) -> None:
    async with Worker(server, tasks=registry_of(doubled, 3, LONG), concurrency=3) as worker:
        first, gone = numbers(server, 2)
        worker.cancel([gone.lease])
        assert (await server.end(gone)).move is Move.HAND_BACK
        last = numbers(server, 2)
        assert (await server.end(first)).result == b"0"
        assert [one.result for one in await ends(server, last)] == [b"0", b"2"]


async def test_a_batch_that_was_emptied_does_not_start(server: FakeServer) -> None:
    async with Worker(server, tasks=registry_of(doubled, 3, 0.01), concurrency=3) as worker:
        jobs = numbers(server, 2)
        worker.cancel([job.lease for job in jobs])
        assert [one.move for one in await ends(server, jobs)] == [Move.HAND_BACK] * 2
        await server.until(lambda: server.free == 3)
        (job,) = numbers(server, 1)
        assert (await server.end(job)).result == b"0"


async def test_a_cancel_of_one_job_is_flagged_and_the_others_go_on(server: FakeServer) -> None:
    cancelled = asyncio.Event()

    async def take(ns: list[int], contexts: list[Context]) -> list[bool]:
        await cancelled.wait()
        return [ctx.cancelled for ctx in contexts]

    async with Worker(server, tasks=tasks(take, 2), concurrency=2) as worker:
        one, other = numbers(server, 2)
        await server.start_of(other)
        worker.cancel([one.lease])
        cancelled.set()
        assert (await server.end(one)).move is Move.ACKNOWLEDGE_CANCEL
        assert (await server.end(other)).result == b"false"


async def test_a_call_is_interrupted_when_all_its_jobs_are_cancelled(server: FakeServer) -> None:
    async def take(ns: list[int]) -> list[int]:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            return ns  # it was cancelled, so its result does not count
        return []

    async with Worker(server, tasks=tasks(take, 2), concurrency=2) as worker:
        jobs = numbers(server, 2)
        await server.start_of(jobs[1])
        worker.cancel([jobs[0].lease])
        worker.cancel([jobs[1].lease])
        for report in await ends(server, jobs):
            assert report.move is Move.ACKNOWLEDGE_CANCEL


async def test_a_lost_lease_does_not_stop_the_others(server: FakeServer) -> None:
    going = asyncio.Event()

    async def take(ns: list[int]) -> list[int]:
        await going.wait()
        return ns

    server.refuse = lambda report: report.move is Move.START and report.lease == 1001
    async with Worker(server, tasks=tasks(take, 2), concurrency=2) as worker:
        _, kept = numbers(server, 2)
        await server.start_of(kept)
        await server.until(lambda: worker.unended == 1)
        going.set()
        assert (await server.end(kept)).result == b"1"
        await server.until(lambda: server.free == 2)
        assert [report.lease for report in server.ends()] == [kept.lease]


# -- drain, stop, suspects -------------------------------------------------------------------------


async def test_a_drain_hands_back_what_was_collected(server: FakeServer) -> None:
    async with Worker(server, tasks=registry_of(doubled, 4, LONG), concurrency=4) as worker:
        jobs = numbers(server, 3)
        worker.set_status(WorkerStatus.DRAINING)
        assert [one.move for one in await ends(server, jobs)] == [Move.HAND_BACK] * 3
        worker.set_status(WorkerStatus.ONLINE)
        await server.until(lambda: server.free == 4)
        assert [one.move for one in await ends(server, numbers(server, 4))] == [Move.SUCCEED] * 4


async def test_a_stop_finishes_the_call_and_hands_back_what_was_collected(
    server: FakeServer,
) -> None:
    release = asyncio.Event()

    async def take(ns: list[int]) -> list[int]:
        await release.wait()
        return ns

    async with Worker(server, tasks=tasks(take, 2), concurrency=4) as worker:
        running = numbers(server, 2)
        await server.start_of(running[1])
        (collected,) = numbers(server, 1)
        stopping = asyncio.create_task(worker.stop(patience.longest(20)))
        assert (await server.end(collected)).move is Move.HAND_BACK
        release.set()
        assert [one.move for one in await ends(server, running)] == [Move.SUCCEED] * 2
        await stopping


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_call_that_does_not_end_in_time_is_left(server: FakeServer, kind: str) -> None:
    release = threading.Event()

    async def on_loop(ns: list[int]) -> None:
        await asyncio.sleep(LONG)

    def in_thread(ns: list[int]) -> None:
        release.wait(patience.longest(20))

    made = Registry()
    options = TaskOptions(batch=2, batch_wait=LONG)
    made.add(define(on_loop if kind == "async def" else in_thread, name="take", options=options))
    async with Worker(server, tasks=made, concurrency=2, stop_within=0.2):
        jobs = numbers(server, 2)
        await server.start_of(jobs[1])
    release.set()
    assert server.ends() == []
    assert server.closed == 1


async def test_a_suspect_runs_in_a_batch_of_its_own(server: FakeServer) -> None:
    calls: list[list[int]] = []

    async def take(ns: list[int]) -> None:
        calls.append(ns)

    async with Worker(server, tasks=tasks(take, 4), concurrency=4):
        before = server.job("take", b'{"ns": 1}')
        suspect = server.job("take", b'{"ns": 2}', deaths=2)
        beside = server.job("take", b'{"ns": 3}')
        server.hand_out([before, suspect, beside])
        assert (await server.end(beside)).move is Move.HAND_BACK
        # The jobs collected before it start at once: no other job can join them.
        assert (await server.end(before)).move is Move.SUCCEED
        assert (await server.end(suspect)).move is Move.SUCCEED
        assert server.moves(suspect) == [Move.START, Move.SUCCEED]
        await server.until(lambda: server.free == 4)
    assert calls == [[1], [2]]


async def test_the_assignment_of_a_collected_job_does_not_time_out(server: FakeServer) -> None:
    made = registry_of(doubled, 2, LONG)
    async with Worker(server, tasks=made, concurrency=2, heartbeat_interval=0.02):
        (job,) = numbers(server, 1)
        await server.next_beat()
        await server.next_beat()
        assert job.lease in server.begun[-1]
        assert server.moves(job) == []


# -- mistakes --------------------------------------------------------------------------------------


async def test_a_worker_with_fewer_slots_than_a_batch_refuses_to_start(server: FakeServer) -> None:
    small = Worker(server, tasks=registry_of(doubled, 5, LONG), concurrency=4)
    with pytest.raises(InvalidArgument) as refused:
        await small.runtime.start()
    assert str(refused.value) == (
        "worker.concurrency: task 'take' runs batches of 5 jobs, each of which takes a slot, but"
        " this worker has 4; set its concurrency to 5 or more, or lower batch="
    )
    assert server.connects == 0
    await small.runtime.stop()
    elsewhere = Worker(server, tasks=registry_of(doubled, 5, LONG), concurrency=4, queues=("mail",))
    async with elsewhere:
        assert server.connects == 1


async def test_a_worker_that_runs_a_program_refuses_batch_tasks(server: FakeServer) -> None:
    program = Worker(server, tasks=registry_of(doubled, 2, LONG), exec_command=["cat"])
    with pytest.raises(InvalidArgument, match="this worker runs a program for each job"):
        await program.runtime.start()
    await program.runtime.stop()


def _no_list(doc: int) -> None: ...
def _no_parameter() -> None: ...
def _default(docs: list[int] = []) -> None: ...  # noqa: B006
def _many(*docs: list[int]) -> None: ...
def _one_result(docs: list[int]) -> int: ...  # type: ignore[empty-body]
def _one_context(docs: list[int], ctx: Context) -> None: ...
def _fine(docs: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "options", "says"),
    [
        (_no_list, {}, "parameter 'doc' must be a list.* expected `list[int]`, got `int`"),
        (_no_parameter, {}, "needs a parameter: a list of its jobs' arguments"),
        (_default, {}, "parameter 'docs' cannot have a default"),
        (_many, {}, "cannot have \\*args or \\*\\*kwargs"),
        (_one_result, {}, "must return a list .* expected `list[int]`, got `int`"),
        (_one_context, {}, "expected `list[Context]`, got `Context`"),
        (
            _fine,
            {"batch": 0},
            "batch: expected the largest number of jobs in one call, 1 to 10000, got 0",
        ),
        (_fine, {"batch": True}, "batch: expected .* got True"),
        (_fine, {"batch": 10_001}, "batch: expected .* got 10001"),
        (_fine, {"batch_wait": -1.0}, "batch_wait: must be 0 to 60 s, got -1 s"),
        (_fine, {"batch_wait": float("nan")}, "batch_wait: must be 0 to 60 s"),
        (_fine, {"batch": None, "batch_wait": 1.0}, "batch_wait: is only allowed together with"),
        (_fine, {"executor": "process"}, "batch: is not allowed together with executor='process'"),
    ],
)
def test_a_task_that_cannot_have_batches_says_why(
    fn: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says.replace("[", r"\[").replace("]", r"\]")):
        define(fn, options=TaskOptions(**{"batch": 2, **options}))
