"""A process that forks after it has used an app: parent and child go on, or the child is told."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import patience
from tests.cli import processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# `fork` runs a function in a child and returns what it printed; `count` is the number of jobs.
PRELUDE = """
import asyncio, multiprocessing, os, sys, threading, time
from jobqueue import JobQueue
from jobqueue.core.errors import Conflict

app = JobQueue(sys.argv[1])

@app.task
def noop(n: int) -> None: ...

def fork(function, *args):
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        began = time.monotonic()
        try:
            said = str(function(*args))
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        if time.monotonic() - began > 8:
            said = f"after {time.monotonic() - began:.0f} s: {said}"  # a time-out
        os.write(into, said.encode())
        os._exit(0)
    os.close(into)
    said = b""
    while part := os.read(out, 65536):
        said += part
    status = os.waitpid(pid, 0)[1]
    return said.decode() if status == 0 else f"the child ended with {status}"

def count():
    return q.run(app.operator.queue_stats("default")).depth

q = app.sync()
"""

# What libraries write by themselves: gRPC, when it is in use; asyncpg, of a connect that is cut.
NOISE = ("fork_posix.cc", "exception was never retrieved", "unexpected connection_lost() call")


@pytest.fixture(params=["sqlite", "grpc", pytest.param("postgres", marks=pytest.mark.integration)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Queues that processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(
        request.getfixturevalue({"grpc": "server", "postgres": "postgres_dsn"}[request.param])
    )


@pytest.fixture(params=["sqlite", "grpc"])
def url_of_a_file_or_server(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What is open there does not survive a fork."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("server"))


def run(url: str, folder: Path, body: str, *, in_use: bool = False) -> str:
    script = folder / "forks.py"
    script.write_text(PRELUDE + textwrap.dedent(body))
    ran = subprocess.run(
        [sys.executable, script, url],
        capture_output=True,
        text=True,
        timeout=patience.longest(50),
        # gRPC may crash a child that was forked while it is in use, unless it is told not to try.
        env=processes.environment(**({"GRPC_ENABLE_FORK_SUPPORT": "0"} if in_use else {})),
    )
    said = [line for line in ran.stderr.splitlines() if not any(n in line for n in NOISE)]
    warned = [line for line in said if line.startswith("the process forks while gRPC channels")]
    assert (ran.returncode, said) == (0, warned)
    assert bool(warned) == (in_use and url.startswith("grpc://"))
    return ran.stdout


def test_the_blocking_client_goes_on_in_parent_and_children(url: str, tmp_path: Path) -> None:
    said = run(
        url,
        tmp_path,
        """
        def submit(n):
            return q.submit(noop, n).created

        ids = [q.submit(noop, 0).id]
        print(*(fork(submit, n) for n in range(3)))
        ids.append(q.submit(noop, 4).id)
        print(fork(submit, 5))
        print(fork(fork, submit, 6))
        print(*(q.job(id).status().state.name for id in ids))
        """,
    )
    assert said.splitlines() == ["True True True", "True", "True", "PENDING PENDING"]


def test_nothing_that_a_child_submits_is_lost_when_the_parent_closes(
    tmp_path: Path,
) -> None:
    """SQLite's last connection removes the log: it must know of those in other processes."""
    said = run(
        f"sqlite:///{tmp_path / 'jobs.db'}",
        tmp_path,
        """
        q.submit(noop, 0)
        there, back = multiprocessing.Barrier(2), multiprocessing.Barrier(2)

        def child():
            q.submit(noop, 1)
            there.wait()
            back.wait()
            q.submit(noop, 2)
            q.close()

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        q.run(app.open())
        there.wait()
        q.close()
        back.wait()
        process.join()
        print(len(q.run(app.operator.list_jobs()).jobs))
        """,
    )
    assert said == "3\n"


def test_a_pool_of_forked_processes_can_submit(url: str, tmp_path: Path) -> None:
    said = run(
        url,
        tmp_path,
        """
        def submit(n):
            return q.submit(noop, n).created

        q.submit(noop, 0)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            print(set(pool.map(submit, range(12))))
        """,
    )
    assert said == "{True}\n"


def test_calls_of_other_threads_go_on_while_the_process_forks(url: str, tmp_path: Path) -> None:
    said = run(
        url,
        tmp_path,
        """
        q.submit(noop, 0)
        stop = threading.Event()
        failed, made = [], []

        def submit():
            while not stop.is_set():
                try:
                    made.append(q.submit(noop, 1).created)
                except BaseException as error:
                    failed.append(repr(error))

        threads = [threading.Thread(target=submit) for _ in range(3)]
        for thread in threads:
            thread.start()
        children = {fork(lambda: q.submit(noop, 2).created) for _ in range(10)}
        stop.set()
        for thread in threads:
            thread.join()
        print(children, failed, len(made) > 0)
        """,
    )
    assert said == "{'True'} [] True\n"


def test_a_queue_in_memory_stays_with_the_parent(tmp_path: Path) -> None:
    said = run(
        "memory://",
        tmp_path,
        """
        job = q.submit(noop, 0)
        print(fork(lambda: q.submit(noop, 1)))
        print(fork(lambda: asyncio.run(noop.submit(1))))
        print(job.status().state.name)
        """,
    )
    *refused, parent = said.splitlines()
    assert parent == "PENDING"
    for line in refused:
        assert line.startswith("Conflict: the app's jobs are in the memory of the process")
        assert "sqlite:///FILE" in line


def test_a_queue_in_memory_that_is_opened_after_the_fork_is_the_childs_own(tmp_path: Path) -> None:
    assert run("memory://", tmp_path, "print(fork(lambda: q.submit(noop, 1).created))") == "True\n"


def test_a_child_of_a_process_whose_app_is_in_use_is_refused_at_once(
    url_of_a_file_or_server: str, tmp_path: Path
) -> None:
    said = run(
        url_of_a_file_or_server,
        tmp_path,
        """
        def submit():
            asyncio.run(noop.submit(1))

        async def main():
            job = await noop.submit(0)
            print(fork(submit))
            print(fork(lambda: q.submit(noop, 1)))
            print((await job.status()).state.name)

        asyncio.run(main())
        """,
        in_use=True,
    )
    *refused, parent = said.splitlines()
    assert parent == "PENDING"
    for line in refused:
        assert line.startswith("Conflict: this process was forked while")
        assert "before the fork" in line
        assert "'spawn'" in line


def test_an_app_on_postgresql_may_be_in_use_when_the_process_forks(
    postgres_dsn: str, tmp_path: Path
) -> None:
    said = run(
        postgres_dsn,
        tmp_path,
        """
        async def submit():
            return (await noop.submit(1)).created

        async def main():
            job = await noop.submit(0)
            print(fork(lambda: asyncio.run(submit())))
            print((await job.status()).state.name)

        asyncio.run(main())
        """,
        in_use=True,
    )
    assert said.splitlines() == ["True", "PENDING"]


def test_a_fork_after_the_apps_loop_has_ended_is_harmless(url: str, tmp_path: Path) -> None:
    said = run(
        url,
        tmp_path,
        """
        async def submit():
            return (await noop.submit(1)).created

        print(asyncio.run(submit()))
        print(fork(lambda: asyncio.run(submit())))
        print(fork(lambda: q.submit(noop, 1).created))
        """,
    )
    assert said.splitlines() == ["True", "True", "True"]


def test_a_fork_does_not_interrupt_a_call_that_waits(
    url_of_a_file_or_server: str, tmp_path: Path
) -> None:
    said = run(
        url_of_a_file_or_server,
        tmp_path,
        """
        job = q.submit(noop, 0)
        events = job.events()
        print(next(events).to_state.name)
        step = threading.Thread(target=lambda: print(next(events).to_state.name))
        step.start()
        while not q._bridge._calls:
            time.sleep(0.001)
        print(fork(lambda: q.submit(noop, 1)))
        job.cancel()
        step.join()
        """,
        in_use=True,
    )
    first, refused, last = said.splitlines()
    assert (first, last) == ("PENDING", "DEAD_LETTERED")
    assert refused.startswith("Conflict: this process was forked while")


def test_a_fork_does_not_stop_a_worker(tmp_path: Path) -> None:
    said = run(
        f"sqlite:///{tmp_path / 'jobs.db'}",
        tmp_path,
        """
        block = app.worker()
        q.run(block.__aenter__())
        print(fork(lambda: "child"))
        print(q.submit(noop, 1).result(timeout=300))
        q.run(block.__aexit__(None, None, None))
        """,
    )
    assert said.splitlines() == ["child", "None"]


def test_the_taskqueue_client_goes_on_in_parent_and_children(server: str, tmp_path: Path) -> None:
    said = run(
        server,
        tmp_path,
        """
        from jobqueue import SyncTaskQueueClient

        client = SyncTaskQueueClient(gateway=sys.argv[1].removeprefix("grpc://"))

        def submit():
            return bool(client.submit_job(job_type="x").job_id)

        print(submit(), fork(submit), submit(), fork(submit))
        """,
    )
    assert said == "True True True True\n"


def test_events_go_on_after_a_fork(url_of_a_file_or_server: str, tmp_path: Path) -> None:
    said = run(
        url_of_a_file_or_server,
        tmp_path,
        """
        job = q.submit(noop, 0)
        for event in job.events():
            print(event.to_state.name)
            if event.to_state.name == "PENDING":
                print(fork(lambda: "child"))
                job.cancel()
        print(fork(lambda: q.submit(noop, 1).created))
        """,
        in_use=True,
    )
    # When the iteration is over, a fork finds nothing under way.
    assert said.splitlines() == ["PENDING", "child", "DEAD_LETTERED", "True"]


def test_what_the_garbage_collector_ends_during_a_fork_does_not_stop_it(tmp_path: Path) -> None:
    said = run(
        "memory://",
        tmp_path,
        f"""
        import gc

        gc.disable()
        other = JobQueue("sqlite:///{tmp_path / "jobs.db"}")
        other.sync().run(other.open())  # closed before the fork, and garbage is collected then

        class Holder: ...

        holder = Holder()
        holder.itself, holder.events = holder, q.submit(noop, 0).events()
        next(holder.events)
        del holder
        print(fork(lambda: "child"))
        print(q.submit(noop, 1).created)
        """,
    )
    assert said.splitlines() == ["child", "True"]
