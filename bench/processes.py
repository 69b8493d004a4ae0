"""jq-server and jq-worker as a user starts them, and what the system knows about processes."""

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
_GLANCE = 0.5
_IDLE = 0.3  # of a core
_TICKS = os.sysconf("SC_CLK_TCK")
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


def resident_bytes(pid: int | None = None) -> int:
    """The memory of a process, this one by default."""
    for line in Path(f"/proc/{pid or os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")


@dataclass(frozen=True, slots=True)
class CpuSpent:
    """Processor seconds by part."""

    elapsed: float
    seconds: dict[str, float]
    others: float

    @property
    def busy_elsewhere(self) -> str:
        """How far the figure can be trusted."""
        return f"others used {self.others / self.elapsed:.0%} of a core"

    def shares(self) -> str:
        """Of one core each."""
        parts = [f"{name} {spent / self.elapsed:.0%}" for name, spent in self.seconds.items()]
        return f"CPU: {', '.join(parts)}; {self.busy_elsewhere}"

    def per_job(self, jobs: int) -> str:
        """What a job costs, which does not depend on who else is there as a rate does."""
        costs = {name: spent / jobs * 1e6 for name, spent in self.seconds.items()}
        parts = [f"{name} {cost:.0f}" for name, cost in costs.items() if cost >= 0.5]
        total = sum(costs.values())
        return f"CPU µs per job: {', '.join(parts)}, in all {total:.0f}; {self.busy_elsewhere}"


class CpuTimes:
    """Whose time it was: the processors' use by each part, and by everybody else, in a stretch."""

    def __init__(self, processes: Mapping[str, int], families: Mapping[str, int]) -> None:
        self._processes = {"this process": os.getpid(), **processes}
        self._families = families
        self._began = time.perf_counter()
        self._before = self._look()

    def spent(self) -> CpuSpent:
        """Since it was made."""
        elapsed = time.perf_counter() - self._began
        now = self._look()
        spent = {name: now[name] - self._before[name] for name in now}
        others = spent.pop("") - sum(spent.values())
        return CpuSpent(elapsed, spent, max(0.0, others))

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


async def calm(patience: float) -> bool:
    """Wait until the machine is almost idle, so long at most."""
    give_up = time.monotonic() + patience
    while time.monotonic() < give_up:
        before = _busy_seconds()
        await asyncio.sleep(_GLANCE)
        if _busy_seconds() - before < _IDLE * _GLANCE:
            return True
    return False


def stolen_seconds() -> float:
    """Processor time that this machine wanted and its host gave to others, since it started."""
    return int(_first_line(Path("/proc/stat")).split()[8]) / _TICKS


def _busy_seconds() -> float:
    user, nice, system, _, _, *interrupts = map(int, _first_line(Path("/proc/stat")).split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS


def _first_line(path: Path) -> str:
    return path.read_text().partition("\n")[0]
