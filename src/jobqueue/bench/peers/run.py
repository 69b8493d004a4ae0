"""Runs the same work on every system, in alternating order."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobqueue.bench.peers.catalogue import Setting, System
from jobqueue.bench.peers.conversation import Conversation, adapter
from jobqueue.bench.peers.environments import CannotInstall, Environments
from jobqueue.bench.peers.servers import Servers
from jobqueue.core.errors import JobQueueError

RATES = ("single", "together", "batch", "drain")


@dataclass(frozen=True, slots=True)
class Work:
    """What each system is asked. Every step ends when its jobs are done or its time is up."""

    jobs: int = 5_000  # of the batch; a fifth of it is submitted one by one, by each kind of caller
    workers: int = 2  # processes that run jobs
    repetitions: int = 2
    callers: int = 50
    paced: int = 100  # jobs for the latency
    every: float = 0.02  # seconds between the end of one and the next
    pacing: float = 4.0  # seconds at most
    submitting: float = 2.0  # seconds at most
    draining: float = 5.0


@dataclass(slots=True)
class Run:
    """One system in one setting, once."""

    system: System
    setting: Setting
    repetition: int
    order: int
    version: str = ""
    processes: int = 0
    rates: dict[str, dict[str, float]] = field(default_factory=dict)  # jobs and seconds
    ms: list[float] = field(default_factory=list)
    failed: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the kept file."""
        return {
            "system": self.system.name,
            "backing": str(self.system.backing),
            "setting": str(self.setting),
            "version": self.version,
            "repetition": self.repetition,
            "order": self.order,
            "processes": self.processes,
            "rates": self.rates,
            "latency_ms": [round(value, 3) for value in self.ms],
            "failed": self.failed,
        }


def planned(
    systems: Sequence[System], settings: Sequence[Setting], repetitions: int
) -> list[tuple[System, Setting, int]]:
    """Each repetition in the opposite order of the one before: a drift hits all alike."""
    once = [(system, setting) for setting in settings for system in systems]
    plan = []
    for repetition in range(repetitions):
        turn = once if repetition % 2 == 0 else once[::-1]
        plan += [(system, setting, repetition) for system, setting in turn]
    return plan


class Comparison:
    """All runs of a plan, on the same servers."""

    def __init__(self, work: Work, environments: Environments, seconds: float) -> None:
        self._work = work
        self._environments = environments
        self._seconds = seconds
        self._missing: dict[str, CannotInstall] = {}  # by the system's name
        self.conditions: dict[str, str] = {}
        self.cut_short = False

    def install(self, systems: Sequence[System], say: Callable[[str], None]) -> None:
        """Get the peers that are missing, before the time runs.

        What cannot be had fails when its turn comes, and is not tried again.
        """
        for system in systems:
            if system.is_ours or self._environments.has(system.pins):
                continue
            say(f"installing {system.name}")
            try:
                self._environments.python(system.pins)
            except CannotInstall as error:
                self._missing[system.name] = error

    def runs(self, plan: Sequence[tuple[System, Setting, int]]) -> Generator[Run, None, None]:
        """One after the other. A system that fails is left out of what follows."""
        failed: set[str] = set()
        give_up = time.monotonic() + self._seconds
        with tempfile.TemporaryDirectory(prefix="jobqueue-peers-") as made:
            folder = Path(made)
            folder.chmod(0o755)  # a server runs as another user when we are root
            servers = Servers(folder)
            try:
                for order, (system, setting, repetition) in enumerate(plan):
                    run = Run(system, setting, repetition, order)
                    which = f"{system.label} {setting}"
                    if which in failed:
                        continue
                    if time.monotonic() > give_up:
                        self.cut_short = True
                        return
                    try:
                        self._measure(run, servers, folder)
                    except JobQueueError as error:
                        failed.add(which)
                        run.failed = error.message
                    yield run
            finally:
                self.conditions = servers.conditions
                servers.stop()

    def _measure(self, run: Run, servers: Servers, folder: Path) -> None:
        system, work = run.system, self._work
        python = Path(sys.executable)
        if system.name in self._missing:
            raise self._missing[system.name]
        if not system.is_ours:
            python = self._environments.python(system.pins)
        marks = folder / f"marks-{run.order}"
        environment = {
            "BENCH_URL": servers.empty(system.backing),
            "BENCH_SETTING": str(run.setting),
            "BENCH_WORKERS": str(work.workers),
            "BENCH_MARKS": str(marks),
        }
        log = folder / f"log-{run.order}"
        with adapter(python, system.module, system.adapters, environment, log) as peer:
            run.version = peer.version
            self._ask_all(run, peer)
        marks.unlink(missing_ok=True)

    def _ask_all(self, run: Run, peer: Conversation) -> None:
        work = self._work
        run.processes = peer.ask("start", within=60)["processes"]
        run.ms = peer.ask(
            "latency", within=60, jobs=work.paced, every=work.every, seconds=work.pacing
        )["ms"]
        peer.ask("pause", within=60)
        few = max(1, work.jobs // 5)
        bounds = {"within": work.submitting, "seconds": work.submitting}
        run.rates["single"] = peer.ask("single", jobs=few, **bounds)
        run.rates["together"] = peer.ask("together", jobs=few, callers=work.callers, **bounds)
        run.rates["batch"] = peer.ask("batch", jobs=work.jobs, **bounds)
        run.rates["drain"] = peer.ask("drain", within=work.draining, seconds=work.draining)


def with_bases(chosen: Sequence[System], known: Sequence[System]) -> list[System]:
    """Those systems, and before them jobqueue on whatever they run on: it is their measure."""
    needed = {system.backing for system in chosen}
    bases = [one for one in known if one.is_ours and one.backing in needed and one not in chosen]
    return [*bases, *chosen]
