"""Measure the processor time and memory of processes, and the processor time of other programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

GENERATOR = "generator"  # the part that generates the load, not a part of the measured system
_GLANCE = 0.5
_IDLE = 0.3  # of a core
_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class CpuSpent:
    """Holds the processor seconds that each part of a topology, and all other programs, used."""

    elapsed: float
    seconds: dict[str, float]
    others: float
    stolen: float = 0.0

    @property
    def busy_elsewhere(self) -> str:
        """Return a text with the share of a core that other programs used."""
        return f"others used {self.others / self.elapsed:.0%} of a core"

    def shares(self) -> str:
        """Return a text with the processor time of each part as a share of one core."""
        parts = [f"{name} {spent / self.elapsed:.0%}" for name, spent in self.seconds.items()]
        return f"CPU: {', '.join(parts)}; {self.busy_elsewhere}"

    def per_job(self, jobs: int) -> str:
        """Return a text with the processor time per job of each part.

        Unlike a rate, the processor time per job hardly depends on other programs.
        """
        costs = {name: spent / jobs * 1e6 for name, spent in self.seconds.items()}
        parts = [f"{name} {cost:.0f}" for name, cost in costs.items() if cost >= 0.5]
        total = sum(costs.values())
        return f"CPU µs per job: {', '.join(parts)}, in all {total:.0f}; {self.busy_elsewhere}"


class CpuTimes:
    """Measures the processor time of each part and of other programs since its creation.

    ``processes`` are single processes. ``families`` are processes with all their descendants,
    including those that ended. ``meters`` are functions that return the seconds of a part, such as
    a container.
    """

    def __init__(
        self,
        processes: Mapping[str, int],
        families: Mapping[str, int],
        own: str = "this process",
        meters: Mapping[str, Callable[[], float]] | None = None,
    ) -> None:
        """Start measuring.

        ``own`` is the name of this process, or empty if ``families`` contains this process.
        """
        self._processes = {**({own: os.getpid()} if own else {}), **processes}
        self._families = families
        self._meters = meters or {}
        self._began = time.perf_counter()
        self._stolen = stolen_seconds()
        self._before = self._look()

    def spent(self) -> CpuSpent:
        """Return the processor time used since this object was created."""
        elapsed = time.perf_counter() - self._began
        now = self._look()
        spent = {name: now[name] - self._before[name] for name in now}
        others = spent.pop("") - sum(spent.values())
        return CpuSpent(elapsed, spent, max(0.0, others), stolen_seconds() - self._stolen)

    def _look(self) -> dict[str, float]:
        table = _table()
        seconds = {
            name: table[pid].own if pid in table else 0.0 for name, pid in self._processes.items()
        }
        for name, pid in self._families.items():
            seconds[name] = sum(one.own + one.ended_children for one in _family(table, pid))
        for name, meter in self._meters.items():
            seconds[name] = meter()
        return {**seconds, "": _busy_seconds()}


@dataclass(frozen=True, slots=True)
class _Spent:
    pid: int
    parent: int
    own: float
    ended_children: float


def _family(table: Mapping[int, _Spent], root: int) -> Iterator[_Spent]:
    found = [root] if root in table else []
    while found:
        pid = found.pop()
        yield table[pid]
        found += [one.pid for one in table.values() if one.parent == pid]


def _table() -> dict[int, _Spent]:
    table = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                own, children = (int(words[n]) + int(words[n + 1]) for n in (11, 13))
                pid = int(folder.name)
                table[pid] = _Spent(pid, int(words[1]), own / _TICKS, children / _TICKS)
    return table


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process in bytes, by default of this process."""
    return _status_bytes(pid or os.getpid(), "VmRSS")


def peak_bytes(pid: int) -> int:
    """Return the peak memory of a process in bytes, or 0 if the process is gone."""
    try:
        return _status_bytes(pid, "VmHWM")
    except OSError:
        return 0


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * _KIB
    raise OSError(f"/proc/{pid}/status has no {name}")


async def calm(patience: float) -> bool:
    """Wait until the machine is almost idle. Returns False after ``patience`` seconds."""
    give_up = time.monotonic() + patience
    while time.monotonic() < give_up:
        before = _busy_seconds()
        await asyncio.sleep(_GLANCE)
        if _busy_seconds() - before < _IDLE * _GLANCE:
            return True
    return False


def stolen_seconds() -> float:
    """Return the processor seconds since boot that the host gave to other virtual machines."""
    return _ticks()[7] / _TICKS


def fsync_milliseconds(folder: Path, times: int = 200) -> float:
    """Return the median ms of a durable 4 KiB write, the least time of a durable commit."""
    taken = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * 4096, 0)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return median(taken) * 1e3


def described(folder: Path) -> dict[str, Any]:
    """Return a description of this machine, by which reports compare machines."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "fdatasync_ms": round(fsync_milliseconds(folder), 3),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _busy_seconds() -> float:
    user, nice, system, _, _, *interrupts = _ticks()[:7]
    return (user + nice + system + sum(interrupts)) / _TICKS


def _ticks() -> list[int]:
    return [int(one) for one in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
