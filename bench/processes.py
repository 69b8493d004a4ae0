"""jq-server and jq-worker as a user starts them, and what the system knows about processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.topology.backing.ports import free_port

PATIENCE = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")
_HERE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Server:
    """A jq-server that answers."""

    pid: int
    target: str


@contextlib.asynccontextmanager
async def server(url: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Server]:
    """A server without a pool of its own, on free ports, with default settings but for these."""
    port = free_port()
    told = {
        "JQ_DB_URL": url,
        "JQ_HTTP_PORT": str(free_port()),
        "JQ_GRPC_PORT": str(port),
        "JQ_WORKER_CONCURRENCY": "0",
        **(environment or {}),
    }
    with running("jobqueue.cli.server", told) as process:
        target = f"127.0.0.1:{port}"
        await _answers(process, target)
        yield Server(process.pid, target)


@contextlib.asynccontextmanager
async def worker(
    name: str,
    environment: Mapping[str, str],
    workers: Callable[[], Awaitable[list[Worker]]],
) -> AsyncIterator[int]:
    """A jq-worker with the benchmarks' tasks, once it is ONLINE; yields its pid."""
    told = {
        "JQ_WORKER_ID": name,
        "JQ_WORKER_METRICS_PORT": "0",
        "JQ_WORKER_APP": "bench.tasks:app",
        **environment,
    }
    with running("jobqueue.cli.worker", told) as process:
        give_up = time.monotonic() + PATIENCE
        while not any(
            w.info.id == name and w.status is WorkerStatus.ONLINE for w in await workers()
        ):
            _check(process, give_up)
            await asyncio.sleep(0.05)
        yield process.pid


@contextlib.contextmanager
def running(
    module: str, environment: Mapping[str, str], *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours; what the caller's environment says about jobqueue is left out."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
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


async def _answers(process: subprocess.Popen[bytes], target: str) -> None:
    backend = GrpcBackend(target)
    give_up = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                await backend.health()
            except JobQueueError:
                _check(process, give_up)
                await asyncio.sleep(0.05)
            else:
                return
    finally:
        await backend.stop()


def _check(process: subprocess.Popen[bytes], give_up: float) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with status {process.returncode}")
    if time.monotonic() > give_up:
        raise TimeoutError(f"{process.args!r} is not ready after {PATIENCE:g} s")


def resident_bytes(pid: int | None = None) -> int:
    """The memory of a process, this one by default."""
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")


class CpuTimes:
    """Whose time it was: the processors' use by each part, and by everybody else, in a stretch."""

    def __init__(self, processes: Mapping[str, int], families: Mapping[str, int]) -> None:
        self._processes = {"this process": os.getpid(), **processes}
        self._families = families
        self._began = time.perf_counter()
        self._before = self._look()

    def __str__(self) -> str:
        elapsed = time.perf_counter() - self._began
        now = self._look()
        spent = {name: (now[name] - self._before[name]) / elapsed for name in now}
        others = spent.pop("") - sum(spent.values())
        shares = [f"{name} {share:.0%}" for name, share in spent.items()]
        return f"CPU: {', '.join(shares)}, others {max(0.0, others):.0%}"

    def _look(self) -> dict[str, float]:
        table = _table()
        seconds = {name: table[pid].own for name, pid in self._processes.items()}
        for name, pid in self._families.items():
            living = sum(one.own for one in table.values() if one.parent == pid)
            seconds[name] = living + table[pid].own + table[pid].buried
        return {**seconds, "": _busy_seconds()}


@dataclass(frozen=True, slots=True)
class _Spent:
    parent: int
    own: float
    buried: float  # of children that ended


def _table() -> dict[int, _Spent]:
    table = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                own, buried = (int(words[n]) + int(words[n + 1]) for n in (11, 13))
                table[int(folder.name)] = _Spent(int(words[1]), own / _TICKS, buried / _TICKS)
    return table


def _busy_seconds() -> float:
    user, nice, system, _, _, *interrupts = map(int, _first_line(Path("/proc/stat")).split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS


def _first_line(path: Path) -> str:
    return path.read_text().partition("\n")[0]
