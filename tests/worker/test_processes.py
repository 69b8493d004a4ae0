"""Handlers in processes: arguments, crashes, kills, and their end with the worker."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from jobqueue.core.lifecycle import Move
from jobqueue.core.progress import Progress
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker.registry import Registry
from tests import patience
from tests.worker import handlers
from tests.worker.fakes import FakeServer, Worker

IN_PROCESS = TaskOptions(executor="process")


def tasks(*fns: Any) -> Registry:
    found = Registry()
    for fn in fns:
        found.add(define(fn, options=IN_PROCESS))
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def gone(pid: int, within: float = 10.0) -> bool:
    limit = patience.Limit(within)
    while alive(pid):
        if limit.over:
            return False
        await asyncio.sleep(0.01)
    return True


async def test_a_process_runs_handlers_one_after_another(server: FakeServer) -> None:
    async with Worker(server, tasks=tasks(handlers.add, handlers.swap, handlers.pid)):
        assert (await server.end(server.deliver("add", b'{"a": 2, "b": 3}'))).result == b"5"
        swapped = await server.end(server.deliver("swap", b'{"point": {"x": 1, "y": 2}}'))
        assert swapped.result == b'{"x":2,"y":1}'
        first = (await server.end(server.deliver("pid"))).result
        assert first == (await server.end(server.deliver("pid"))).result
        assert first != str(os.getpid()).encode()
        wrong = await server.end(server.deliver("add", b'{"a": 2}'))
        assert (wrong.error, wrong.retryable) == (
            "InvalidArgument: b: missing; expected `int`",
            False,
        )


async def test_how_a_handler_in_a_process_can_end(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    used = (handlers.boom, handlers.later, handlers.never, handlers.crash, handlers.large)
    async with Worker(
        server, tasks=tasks(*used, handlers.chatter), concurrency=1, max_result_bytes=100
    ):
        boom = await server.end(server.deliver("boom"))
        assert boom.error.startswith("ValueError: no luck\n")
        assert 'raise ValueError("no luck")' in boom.error
        assert (await server.end(server.deliver("later"))).retry_after == 12.5
        assert not (await server.end(server.deliver("never"))).retryable
        large = await server.end(server.deliver("large", b'{"size": 200}'))
        assert (large.retryable, large.error) == (
            False,
            "result: 202 bytes, more than the 100 allowed",
        )
        crash = await server.end(server.deliver("crash"))
        assert (crash.move, crash.retryable) == (Move.FAIL, True)
        assert crash.error == "the process that ran the job has ended: exit status 7"
        assert (await server.end(server.deliver("chatter"))).result == b'"ok"'  # in a new one
    out, err = capfd.readouterr()
    assert "on stdout" in out
    assert "on stderr" in err


async def test_a_cpu_handler_is_killed_at_its_timeout_and_the_next_job_runs(
    server: FakeServer, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    async with Worker(
        server, tasks=tasks(handlers.spin_with_child, handlers.add), concurrency=1
    ) as worker:
        payload = f'{{"pid_file": "{pid_file}"}}'.encode()
        report = await server.end(server.deliver("spin_with_child", payload, timeout=1.0))
        assert report.move is Move.TIME_OUT
        await server.until(lambda: server.free == 1)
        assert worker.running == 0
        assert await gone(int(pid_file.read_text()))  # its own child too
        assert (await server.end(server.deliver("add", b'{"a": 1, "b": 1}'))).result == b"2"


async def test_cancel_of_a_handler_that_looks_at_the_flag(server: FakeServer) -> None:
    async with Worker(server, tasks=tasks(handlers.wait_for_cancel)) as worker:
        job = server.deliver("wait_for_cancel")
        await server.start_of(job)
        execution = worker._running[job.lease]
        limit = patience.Limit(10)
        while execution.context is None or execution.context.latest_progress is None:
            assert not limit.over
            await asyncio.sleep(0.005)
        assert execution.context.latest_progress == Progress(0.5, "waiting")
        worker.cancel([job.lease])
        assert (await server.end(job)).move is Move.ACKNOWLEDGE_CANCEL


async def test_cancel_of_a_handler_that_does_not_look(server: FakeServer) -> None:
    async with Worker(server, tasks=tasks(handlers.spin), cancel_grace=0.1) as worker:
        job = server.deliver("spin")
        await server.start_of(job)
        worker.cancel([job.lease])
        assert (await server.end(job)).move is Move.ACKNOWLEDGE_CANCEL
        await server.until(lambda: server.free == 4)


async def test_a_job_whose_process_is_not_up_yet_is_handed_back(server: FakeServer) -> None:
    async with Worker(server, tasks=tasks(handlers.add)) as worker:
        job = server.deliver("add", b'{"a": 1, "b": 1}')
        await asyncio.sleep(0)
        await worker.stop(20)
        assert (await server.end(job)).move is Move.HAND_BACK


async def test_processes_end_when_the_worker_stops(server: FakeServer) -> None:
    async with Worker(server, tasks=tasks(handlers.pid, handlers.spin)) as worker:
        idle = int((await server.end(server.deliver("pid"))).result or b"0")
        assert alive(idle)
        await server.start_of(server.deliver("spin"))
        busy = next(iter(worker._executors.processes._busy.values()))._process.pid
        await worker.stop(0.3)
        assert await gone(idle)
        assert await gone(busy)


def test_a_decorated_handler_is_found_by_its_definition() -> None:
    from jobqueue.worker.child import Child, Run

    definition = define(handlers.add, options=IN_PROCESS)
    original = handlers.add
    handlers.add = handlers.Decorated(definition)  # type: ignore[assignment]
    try:
        run = Run(1, original.__module__, "add", None, sys.path, "", "", "", 1, 0, 0, {}, b"", 1)
        assert Child(None)._find(run) is definition  # type: ignore[arg-type]
    finally:
        handlers.add = original


SCRIPT = """
    import asyncio, os, re
    from jobqueue.core.job import JobSpec
    from jobqueue.engine.engine import Engine
    from jobqueue.stores.memory import MemoryStore
    from jobqueue.tasks.task import TaskOptions, define
    from jobqueue.worker.registry import Registry
    from jobqueue.worker.runtime import WorkerRuntime
    from jobqueue.worker.settings import WorkerSettings

    def triple(n: int) -> int:
        return 3 * n

    def spin() -> None:
        print(os.getpid(), flush=True)
        re.match("(a+)+$", "a" * 60 + "b")  # keeps the interpreter to itself, for ever

    async def main():
        tasks = Registry()
        for fn in (triple, spin):
            tasks.add(define(fn, options=TaskOptions(executor="process")))
        engine = Engine(MemoryStore())
        await engine.start()
        worker = WorkerRuntime(engine, tasks, WorkerSettings(id="w"))
        await worker.start()
        (done,) = await engine.submit([JobSpec(payload=b'{"n": 14}', type="triple")])
        print((await engine.wait(done.job_id, 300)).result.decode(), flush=True)
        await engine.submit([JobSpec(payload=b"{}", type="spin")])
        await asyncio.sleep(600)

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.faults
async def test_a_script_has_processes_and_they_die_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "42\n"
            child = int(await asyncio.to_thread(process.stdout.readline))
            assert alive(child)
        finally:
            process.kill()
            process.wait()
        try:
            assert await gone(child)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


async def test_the_next_job_of_a_process_has_a_context_of_its_own(server: FakeServer) -> None:
    async with Worker(server, tasks=tasks(handlers.look_and_leave), concurrency=1):
        for _ in range(2):
            assert (await server.end(server.deliver("look_and_leave"))).result is None
