"""Scripts that end: by themselves, by an error, by Ctrl-C. They leave nothing running and print
nothing of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience
from tests.cli import processes

ENDS_WITHIN = patience.longest(30.0)  # a script that hangs never ends

TASKS = """
import asyncio, os
from jobqueue import JobQueue

app = JobQueue(os.environ["URL"])

@app.task
async def send(to: str, subject: str) -> str:
    return to

def run(main):
    if os.environ["LOOP"] == "uvloop":
        import uvloop
        uvloop.run(main())
    else:
        asyncio.run(main())
"""

SUBMITS = """
async def main():
    await send.submit("a@b.c", "hello")
run(main)
"""

SUBMITS_MANY = """
async def main():
    await asyncio.gather(*(send.submit("a@b.c", "hello") for _ in range(20)))
    await send.submit_many([("a@b.c", "hello")] * 20)
run(main)
"""

SUBMITS_TWICE = """
async def main():
    await send.submit("a@b.c", "hello")
run(main)
run(main)
"""

BLOCKS = """
q = app.sync()
q.submit(send, "a@b.c", "hello")
"""

BLOCKS_IN_A_BLOCK = """
with app.sync() as q:
    q.submit(send, "a@b.c", "hello")
"""

WORKS = """
async def main():
    async with app.worker():
        await (await send.submit("a@b.c", "hello")).result(timeout=300)
run(main)
"""

LEAVES_ITS_WORKER_RUNNING = """
async def main():
    worker = asyncio.create_task(app.work())
    await (await send.submit("a@b.c", "hello")).result(timeout=300)
run(main)
"""

LEAVES_A_WAIT_RUNNING = """
async def main():
    job = await send.options(delay=60).submit("a@b.c", "hello")
    waits = asyncio.create_task(job.result())
    watches = asyncio.create_task(anext(job.events()))
    await watches
run(main)
"""

LEAVES_EVENTS_UNREAD = """
job = app.sync().submit(send, "a@b.c", "hello")
events = job.events()
next(events)
"""

ENDING = {
    "submits": SUBMITS,
    "submits many": SUBMITS_MANY,
    "submits twice": SUBMITS_TWICE,
    "blocks": BLOCKS,
    "blocks in a block": BLOCKS_IN_A_BLOCK,
    "works": WORKS,
    "leaves its worker running": LEAVES_ITS_WORKER_RUNNING,
    "leaves a wait running": LEAVES_A_WAIT_RUNNING,
    "leaves events unread": LEAVES_EVENTS_UNREAD,
}

RAISING = {
    "async": """
async def main():
    await send.submit("a@b.c", "hello")
    raise LookupError("the script's own")
run(main)
""",
    "in a worker's block": """
async def main():
    async with app.worker():
        await send.submit("a@b.c", "hello")
        raise LookupError("the script's own")
run(main)
""",
    "blocking": BLOCKS + 'raise LookupError("the script\'s own")\n',
}

INTERRUPTED = {
    "async": """
async def main():
    job = await send.options(delay=60).submit("a@b.c", "hello")
    print("waiting", flush=True)
    await job.result()
run(main)
""",
    "in a worker's block": """
async def main():
    async with app.worker():
        job = await send.options(delay=60).submit("a@b.c", "hello")
        print("waiting", flush=True)
        await job.result()
run(main)
""",
    "blocking": """
job = app.sync().submit(send.options(delay=60), "a@b.c", "hello")
print("waiting", flush=True)
job.result()
""",
}

# As when the signal comes a moment before the main thread goes to sleep: nothing wakes it.
INTERRUPTED_UNNOTICED = """
import signal, threading

job = app.sync().submit(send.options(delay=60), "a@b.c", "hello")
threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
job.result()
"""


@pytest.fixture(params=["memory", "sqlite", "grpc"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "grpc":
        return str(request.getfixturevalue("server"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def environment(request: pytest.FixtureRequest, url: str) -> dict[str, str]:
    return processes.environment(URL=url, LOOP=getattr(request, "param", "asyncio"))


def write(folder: Path, body: str) -> list[str]:
    script = folder / "script.py"
    script.write_text(TASKS + body)
    return [sys.executable, str(script)]


@pytest.mark.parametrize("environment", ["asyncio", "uvloop"], indirect=True)
@pytest.mark.parametrize("name", ENDING)
def test_a_script_ends_in_silence(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    ran = subprocess.run(
        write(tmp_path, ENDING[name]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("name", RAISING)
def test_a_script_that_raises_shows_its_own_error_alone(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    ran = subprocess.run(
        write(tmp_path, RAISING[name]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
    )
    assert ran.returncode == 1
    assert ran.stderr.count("Traceback") == 1, ran.stderr
    assert ran.stderr.startswith("Traceback"), ran.stderr
    assert ran.stderr.endswith("LookupError: the script's own\n")


@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_script_ends_on_ctrl_c(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    with subprocess.Popen(
        write(tmp_path, INTERRUPTED[name]),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        try:
            assert script.stdout is not None
            assert script.stdout.readline() == "waiting\n"
            script.send_signal(signal.SIGINT)
            _, said = script.communicate(timeout=ENDS_WITHIN)
        finally:
            script.kill()
    assert script.returncode == -signal.SIGINT
    assert "unhandled" not in said
    assert "never retrieved" not in said
    assert said.endswith("KeyboardInterrupt\n"), said


def test_ctrl_c_that_does_not_wake_a_waiting_script_ends_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ran = subprocess.run(
        write(tmp_path, INTERRUPTED_UNNOTICED),
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
    )
    assert ran.returncode == -signal.SIGINT
    assert ran.stderr.endswith("KeyboardInterrupt\n"), ran.stderr
