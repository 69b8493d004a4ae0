"""Run the same work on every system, in alternating order."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobqueue.bench.machine import CpuTimes
from jobqueue.bench.peers.catalogue import Fsync, PeerSetting, PeerSetup, System
from jobqueue.bench.peers.conversation import AdapterConversation, adapter
from jobqueue.bench.peers.environments import CannotInstall, Environments
from jobqueue.bench.peers.servers import PeerServers
from jobqueue.core.errors import JobQueueError

RATES = ("single", "together", "batch", "drain")
_OTHERS = 0.25  # cores: a run is disturbed if other programs use more


@dataclass(frozen=True, slots=True)
class PeerWork:
    """Describes the work for each system. A step ends when its jobs are done or time is up."""

    jobs: int = (
        20_000  # of the batch; a fifth of it is submitted one by one, by each kind of caller
    )
    workers: int = 2  # processes that run jobs
    repetitions: int = 3
    callers: int = 50
    paced: int = 60  # jobs for the latency
    every: float = 0.02  # seconds between the end of one job and the submit of the next
    pacing: float = 2.0  # the longest time of the latency step, in seconds
    submitting: float = 1.0  # the longest time of each submit step, in seconds
    draining: float = 3.0
    fsync: Fsync = Fsync.NEVER  # of Redis


@dataclass(slots=True)
class PeerRun:
    """Records one run of one system in one setup."""

    system: System
    setup: PeerSetup
    repetition: int
    order: int
    version: str = ""
    processes: int = 0  # worker processes that took part
    slots: int = 0  # jobs at once in all worker processes; 0: no limit
    rates: dict[str, dict[str, float]] = field(default_factory=dict)  # jobs and seconds
    started_ms: list[float] = field(default_factory=list)  # from before the submit
    done_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    others: float = 0.0  # cores that other programs used, or the host took
    failed: str = ""

    @property
    def which(self) -> str:
        """Return the system and the setup as text."""
        return f"{self.system.label}, {self.setup}"

    @property
    def disturbed(self) -> bool:
        """Return True if other programs used more processor time than allowed during the run."""
        return self.others > _OTHERS

    def as_json(self) -> dict[str, Any]:
        """Return the run as a JSON object for the results file."""
        return {
            "system": self.system.name,
            "backing": str(self.system.backing),
            "setting": str(self.setup.setting),
            "slots_asked": self.setup.slots,
            "version": self.version,
            "repetition": self.repetition,
            "order": self.order,
            "processes": self.processes,
            "slots": self.slots,
            "rates": self.rates,
            "started_ms": [round(value, 3) for value in self.started_ms],
            "done_ms": [round(value, 3) for value in self.done_ms],
            "seconds": round(self.seconds, 1),
            "others_cores": round(self.others, 2),
            "disturbed": self.disturbed,
            "failed": self.failed,
        }


def setups(settings: Sequence[PeerSetting], slots: Sequence[int]) -> list[PeerSetup]:
    """Return each setting with each number in ``slots``, or with its default if that is empty."""
    if not slots:
        return [PeerSetup(setting) for setting in settings]
    return [PeerSetup(setting, number) for setting in settings for number in slots]


def planned(
    systems: Sequence[System], chosen: Sequence[PeerSetup], repetitions: int
) -> list[tuple[System, PeerSetup, int]]:
    """Return the order of all runs. Every second repetition runs in reverse order.

    A slow change of the machine then affects all systems alike.
    """
    once = [(system, setup) for setup in chosen for system in systems]
    plan = []
    for repetition in range(repetitions):
        turn = once if repetition % 2 == 0 else once[::-1]
        plan += [(system, setup, repetition) for system, setup in turn]
    return plan


class PeerComparison:
    """Makes all runs of a plan on the same servers."""

    def __init__(self, work: PeerWork, environments: Environments, seconds: float) -> None:
        self._work = work
        self._environments = environments
        self._seconds = seconds
        self._missing: dict[str, CannotInstall] = {}  # by the system's name
        self.conditions: dict[str, str] = {}
        self.cut_short = False

    def install(self, systems: Sequence[System], say: Callable[[str], None]) -> None:
        """Install the missing peers before the time limit of the runs starts.

        A peer that cannot be installed fails in its first run, and is not tried again.
        """
        for system in systems:
            if system.is_ours or self._environments.has(system.pins):
                continue
            say(f"installing {system.name}")
            try:
                self._environments.python(system.pins)
            except CannotInstall as error:
                self._missing[system.name] = error

    def runs(self, plan: Sequence[tuple[System, PeerSetup, int]]) -> Generator[PeerRun, None, None]:
        """Make the runs in order. A system that fails in a setup is left out of later runs."""
        failed: set[str] = set()
        give_up = time.monotonic() + self._seconds
        with tempfile.TemporaryDirectory(prefix="jobqueue-peers-") as made:
            folder = Path(made)
            folder.chmod(0o755)  # a server runs as another user when we are root
            servers = PeerServers(folder, self._work.fsync)
            try:
                for order, (system, setup, repetition) in enumerate(plan):
                    run = PeerRun(system, setup, repetition, order)
                    if run.which in failed:
                        continue
                    if time.monotonic() > give_up:
                        self.cut_short = True
                        return
                    try:
                        self._measure(run, servers, folder)
                    except JobQueueError as error:
                        failed.add(run.which)
                        run.failed = error.message
                    yield run
            finally:
                self.conditions = servers.conditions
                servers.stop()

    def _measure(self, run: PeerRun, servers: PeerServers, folder: Path) -> None:
        system, work = run.system, self._work
        python = Path(sys.executable)
        if system.name in self._missing:
            raise self._missing[system.name]
        if not system.is_ours:
            python = self._environments.python(system.pins)
        marks = folder / f"marks-{run.order}"
        environment = {
            "BENCH_URL": servers.empty(system.backing),
            "BENCH_SETTING": str(run.setup.setting),
            "BENCH_SLOTS": str(run.setup.slots or 0),
            "BENCH_WORKERS": str(work.workers),
            "BENCH_MARKS": str(marks),
        }
        log = folder / f"log-{run.order}"
        began = time.monotonic()
        with adapter(python, system.module, system.adapters, environment, log) as peer:
            run.version = peer.version
            cpu = CpuTimes({}, {"system": peer.pid, **servers.processes()})
            self._ask_all(run, peer)
            spent = cpu.spent()
        run.others = (spent.others + spent.stolen) / spent.elapsed
        run.seconds = time.monotonic() - began
        marks.unlink(missing_ok=True)

    def _ask_all(self, run: PeerRun, peer: AdapterConversation) -> None:
        work = self._work
        started = peer.ask("start", within=60)
        run.processes, run.slots = started["processes"], started["slots"]
        paced = peer.ask(
            "latency", within=60, jobs=work.paced, every=work.every, seconds=work.pacing
        )
        run.started_ms, run.done_ms = paced["started_ms"], paced["done_ms"]
        peer.ask("pause", within=60)
        few = max(1, work.jobs // 5)
        bounds = {"within": work.submitting, "seconds": work.submitting}
        run.rates["single"] = peer.ask("single", jobs=few, **bounds)
        run.rates["together"] = peer.ask("together", jobs=few, callers=work.callers, **bounds)
        run.rates["batch"] = peer.ask("batch", jobs=work.jobs, **bounds)
        run.rates["drain"] = peer.ask("drain", within=work.draining, seconds=work.draining)


def with_bases(chosen: Sequence[System], known: Sequence[System]) -> list[System]:
    """Return the chosen systems, after jobqueue on each database server that they use."""
    needed = {system.backing for system in chosen}
    bases = [one for one in known if one.is_ours and one.backing in needed and one not in chosen]
    return [*bases, *chosen]
