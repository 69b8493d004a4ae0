"""jq-server and jq-worker as a user starts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.topology.backing.ports import free_port

PATIENCE = 60.0
_TRIES = 3
PROFILES = "BENCH_PROFILES"  # a folder: programs run under cProfile, and are slower for it
_HERE = Path(__file__).parents[1]


class Ended(RuntimeError):
    """A program that was to go on did not."""


@dataclass(frozen=True, slots=True)
class Server:
    """A jq-server that answers."""

    process: subprocess.Popen[bytes]
    target: str
    http: str  # its address there

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def environment(self) -> dict[str, str]:
        """What makes a worker one of this server's."""
        return {"JQ_WORKER_SERVER": f"grpc://{self.target}"}


@contextlib.asynccontextmanager
async def server(
    url: str,
    environment: Mapping[str, str] | None = None,
    module: str = "jobqueue.cli.server",
) -> AsyncIterator[Server]:
    """A server without a pool of its own, on free ports, with default settings but for these."""
    for left in reversed(range(_TRIES)):
        port, http_port = free_port(), free_port()
        told = {
            "JQ_DB_URL": url,
            "JQ_HTTP_PORT": str(http_port),
            "JQ_GRPC_PORT": str(port),
            "JQ_WORKER_CONCURRENCY": "0",
            **(environment or {}),
        }
        with running(module, told) as process:
            target = f"127.0.0.1:{port}"
            try:
                await _answers(process, target, http_port)
            except Ended:
                if left:  # somebody took a port meanwhile
                    continue
                raise
            yield Server(process, target, f"http://127.0.0.1:{http_port}")
            return


@contextlib.asynccontextmanager
async def workers(
    environment: Mapping[str, str],
    known: Callable[[], Awaitable[list[Worker]]],
    count: int = 1,
) -> AsyncIterator[dict[str, int]]:
    """jq-workers with the benchmarks' tasks, once all are ONLINE; yields their pids by name."""
    with contextlib.ExitStack() as stack:
        started = {}
        for number in range(1, count + 1):
            told = {
                "JQ_WORKER_ID": f"worker {number}",
                "JQ_WORKER_METRICS_PORT": "0",
                "JQ_WORKER_APP": "bench.tasks:app",
                **environment,
            }
            process = stack.enter_context(running("jobqueue.cli.worker", told))
            started[told["JQ_WORKER_ID"]] = process
        give_up = time.monotonic() + PATIENCE + 5 * count
        while not started.keys() <= set(online(await known())):
            for process in started.values():
                _check(process, give_up)
            await asyncio.sleep(0.05)
        yield {name: process.pid for name, process in started.items()}


def online(known: Iterable[Worker]) -> list[str]:
    """The names of those that are."""
    return [worker.info.id for worker in known if worker.status is WorkerStatus.ONLINE]


@contextlib.contextmanager
def running(
    module: str, environment: Mapping[str, str], *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours; what the caller's environment says about jobqueue is left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    command = [sys.executable]
    if PROFILES in os.environ:
        name = f"{module}-{environment.get('JQ_WORKER_ID', '')}-{time.time_ns()}.prof"
        command += ["-m", "cProfile", "-o", str(Path(os.environ[PROFILES]) / name)]
    process = subprocess.Popen(
        [*command, "-m", module, *arguments],
        cwd=_HERE,
        env={**kept, "JQ_LOG_LEVEL": "warning", "JQ_LOG_FORMAT": "text", **environment},
        stdout=sys.stderr,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _answers(process: subprocess.Popen[bytes], target: str, http_port: int) -> None:
    """On both ports: on one alone it may be somebody else."""
    backend = GrpcBackend(target)
    give_up = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                await backend.health()
                _, writer = await asyncio.open_connection("127.0.0.1", http_port)
                writer.close()
                await writer.wait_closed()
            except (JobQueueError, OSError):
                _check(process, give_up)
                await asyncio.sleep(0.05)
            else:
                return
    finally:
        await backend.stop()


def _check(process: subprocess.Popen[bytes], give_up: float) -> None:
    if process.poll() is not None:
        raise Ended(f"{process.args!r} ended with status {process.returncode}")
    if time.monotonic() > give_up:
        raise TimeoutError(f"{process.args!r} is not ready in time")
