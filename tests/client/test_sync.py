"""The blocking client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobqueue import Abort, DeadlineExceeded, JobFailed, JobQueue, State
from jobqueue.core.errors import Conflict, InvalidArgument
from tests import patience


def bridge_threads() -> int:
    return sum(t.name == "jobqueue-sync" for t in threading.enumerate())


def make(url: str):
    app = JobQueue(url)

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    return app, add


def test_submit_and_wait_without_a_loop(url: str) -> None:
    app, add = make(url)

    @app.task
    def broken() -> None:
        raise Abort("broken")

    with app.sync() as q:
        block = app.worker()
        q.run(block.__aenter__())
        job = q.submit(add, 1, 2)
        assert job.result(timeout=patience.longest(10)) == 3
        assert job.status().state is State.DONE
        assert [event.to_state for event in job.events()][-1] is State.DONE
        assert q.job(job.id).result() == 3
        assert [j.result(10) for j in q.submit_many(add, [(n, n) for n in range(5)])] == [
            *range(0, 10, 2)
        ]
        failing = q.submit(broken)
        with pytest.raises(JobFailed, match="broken"):
            failing.result(timeout=patience.longest(10))
        assert failing.retry().state is not State.DONE
        q.run(block.__aexit__(None, None, None))
        assert bridge_threads() == 1
        waiting = q.submit(add.options(priority=9), 1, b=2)
        with pytest.raises(DeadlineExceeded):
            waiting.result(timeout=0.01)
        assert waiting.cancel().state is State.DEAD_LETTERED
        assert q.submit(add.options(key="k"), 1, 1).created
        assert not q.submit(add.options(key="k"), 1, 1).created
        assert {s.queue.name for s in q.run(app.operator.list_queues())} == {"default"}
    assert bridge_threads() == 0


def test_many_threads_share_it(url: str) -> None:
    app, add = make(url)
    q = app.sync()
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda n: q.submit(add, n, 1).id, range(200)))
    assert len(set(ids)) == 200
    assert bridge_threads() == 1
    assert q.run(app.operator.queue_stats("default")).depth[State.PENDING] == 200
    q.close()
    assert bridge_threads() == 0


def test_blocks_in_several_threads_close_it_with_the_last(tmp_path: Path) -> None:
    app, add = make(f"sqlite:///{tmp_path / 'jobs.db'}")
    both_in, first_out = threading.Barrier(2), threading.Event()

    def first() -> None:
        with app.sync() as q:
            q.submit(add, 1, 1)
            both_in.wait(patience.longest(10))
        first_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    with app.sync() as q:
        both_in.wait(patience.longest(10))
        assert first_out.wait(patience.longest(10))
        assert bridge_threads() == 1
        q.submit(add, 2, 2)
        assert len(q.run(app.operator.list_jobs()).jobs) == 2
    thread.join()
    assert bridge_threads() == 0


def test_what_is_not_a_task_is_named() -> None:
    app, _ = make("memory://")
    queue = app.sync()
    for wrong, shown in (("add", "'add'"), (make, "make"), (None, "None")):
        with pytest.raises(InvalidArgument, match=f"{shown} is not a task: decorate it"):
            queue.submit(wrong, 1, 2)
        with pytest.raises(InvalidArgument, match=f"{shown} is not a task: decorate it"):
            queue.submit_many(wrong, [(1, 2)])


async def test_inside_an_event_loop_it_says_to_await(app: JobQueue) -> None:
    @app.task
    async def noop() -> None: ...

    with app.sync() as q, pytest.raises(Conflict, match=r"use `await task.submit\(...\)`"):
        q.submit(noop)


async def test_a_thread_beside_a_loop_uses_the_apps_own_loop(app: JobQueue) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    def view() -> int:
        return app.sync().submit(add, 1, 2).result(timeout=patience.longest(10))

    async with app, app.worker():
        assert await asyncio.to_thread(view) == 3
        assert bridge_threads() == 0


async def test_a_sync_handler_may_submit_more(app: JobQueue) -> None:
    q = app.sync()

    @app.task
    def leaf(n: int) -> int:
        return n * 10

    @app.task
    def root(n: int) -> int:
        return q.submit(leaf, n).result(timeout=patience.longest(10)) + 1

    async with app, app.worker():
        assert await (await root.submit(4)).result(timeout=patience.longest(10)) == 41


@pytest.mark.parametrize("close", [True, False])
def test_a_script_ends_cleanly(tmp_path: Path, close: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from jobqueue import JobQueue
            app = JobQueue("sqlite:///{tmp_path}/jobs.db")

            @app.task
            def noop() -> None: ...

            q = app.sync()
            print(q.submit(noop).status().state.name)
            {"q.close()" if close else ""}
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        timeout=patience.longest(40),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "PENDING\n", "")
    # Closed as a store should be: SQLite removes its log when the last connection goes.
    assert not (tmp_path / "jobs.db-wal").exists()
