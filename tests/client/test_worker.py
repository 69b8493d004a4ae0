"""Workers inside the user's program."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextvars import ContextVar
from pathlib import Path

import pytest

from jobqueue import InvalidArgument, JobQueue, State
from tests import patience, ports


async def test_work_runs_until_cancelled_and_drains(app: JobQueue) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> str:
        began.set()
        await release.wait()
        return "finished"

    async with app:
        worker = asyncio.create_task(app.work())
        job = await slow.submit()
        await patience.wait_for(began.wait(), 10)
        worker.cancel()
        await asyncio.sleep(0)
        assert not worker.done()  # it finishes what it runs
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert (await job.status()).state is State.DONE


async def test_a_worker_serves_the_queues_its_tasks_declare(app: JobQueue) -> None:
    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    @app.task
    async def noop() -> None: ...

    assert app.worker_queues() == ("default", "mail")
    assert app.worker_queues(["mail"]) == ("mail",)
    with pytest.raises(InvalidArgument, match=r"queues: expected a list of names, like \['mail'\]"):
        app.worker("mail")
    async with app, app.worker(["mail"], concurrency=1) as worker:
        assert worker.settings.concurrency == 1
        left = await noop.submit()
        assert await (await send.submit()).result(timeout=patience.longest(10)) == "sent"
        assert (await left.status()).state is State.PENDING
    with pytest.raises(InvalidArgument, match=r"queues: expected a list of names, like \['mail'\]"):
        JobQueue("memory://", queues="mail")


async def test_an_idle_worker_of_another_queue_slows_nobody(app: JobQueue) -> None:
    @app.task(queue="mail")
    async def idle() -> None: ...

    @app.task
    async def noop() -> None: ...

    async with app, app.worker(["mail"]), app.worker(["default"], concurrency=2):
        jobs = await noop.submit_many([()] * 100)
        async with patience.timeout(5):  # far more than it takes, far less than by polling
            for job in jobs:
                await job.result()


async def test_an_operator_ends_it(app: JobQueue) -> None:
    async with app:
        worker = asyncio.create_task(app.work())
        while not (workers := await app.operator.list_workers()):
            await asyncio.sleep(0.01)
        await app.operator.shutdown_worker(workers[0].info.id)
        await patience.wait_for(worker, 10)


@pytest.mark.req("jq:NFR-015")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_worker_drains_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "tasks.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, sys, time
            from jobqueue import JobQueue

            app = JobQueue(f"sqlite:///{sys.argv[1]}/jobs.db")

            @app.task
            def slow(seconds: float) -> str:
                print("began", flush=True)
                time.sleep(seconds)
                return "finished"

            if __name__ == "__main__":
                with app.sync() as q:
                    print(q.submit(slow, 0.5).id, flush=True)
                app.run_worker(concurrency=1)
                print("drained", flush=True)
            """
        )
    )
    process = subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        # Beside the log, which is JSON where stdout is no terminal.
        printed = (line for line in process.stdout if not line.startswith("{"))
        job_id = next(printed).strip()
        assert next(printed) == "began\n"
        process.send_signal(number)
        assert list(printed) == ["drained\n"]
        assert process.wait(patience.longest(20)) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()

    async def look() -> str:
        async with JobQueue(f"sqlite:///{tmp_path}/jobs.db") as app:
            return str(await app.job(job_id).result(timeout=patience.longest(5)))

    assert asyncio.run(look()) == "finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_that_waits_for_its_server(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "tasks.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from jobqueue import JobQueue

            JobQueue(f"grpc://127.0.0.1:{sys.argv[1]}").run_worker()
            print("stopped", flush=True)
            """
        )
    )
    with socket.socket() as closed:  # bound, so that nobody else listens there
        closed.bind(("127.0.0.1", ports.take()))
        with subprocess.Popen(
            [sys.executable, script, str(closed.getsockname()[1])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                assert any("cannot register" in line for line in process.stdout)
                process.send_signal(number)
                assert process.stdout.read().endswith("stopped\n")
                assert process.stderr.read() == ""
                assert process.wait(patience.longest(20)) == 0
            finally:
                process.kill()


async def test_no_job_sees_the_context_variables_of_another() -> None:
    seen: ContextVar[str] = ContextVar("seen", default="nothing")
    seen.set("the program's")
    app = JobQueue("memory://")

    @app.task
    def in_a_thread() -> str:
        found = seen.get()
        seen.set("a job's")
        return found

    @app.task
    async def on_the_loop() -> str:
        found = seen.get()
        seen.set("a job's")
        await in_the_end.submit()  # which gives it to the worker, too
        return found

    ends: asyncio.Queue[str] = asyncio.Queue()

    @app.task
    async def in_the_end() -> None:
        ends.put_nowait(seen.get())

    async with app, app.worker(concurrency=2):
        for task in (in_a_thread, in_a_thread, on_the_loop):
            job = await task.submit()
            assert await job.result(timeout=patience.longest(20)) == "the program's"
        assert await patience.wait_for(ends.get(), 20) == "the program's"
