"""Run a profile: order its runs, repeat disturbed runs, and record how much each was disturbed."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import msgspec

from jobqueue._version import __version__
from jobqueue.bench import containers, database, fairness, machine, records
from jobqueue.bench.cell import Cell, Pressure, RunPlace
from jobqueue.bench.filling import fill
from jobqueue.bench.ground import Ground, brought_up, in_containers, running_at
from jobqueue.bench.limit import generator_limit
from jobqueue.bench.load import LoadGenerator
from jobqueue.bench.profile import Profile, Topology
from jobqueue.bench.records import RunRecord
from jobqueue.bench.scenarios.catalogue import Scenario
from jobqueue.bench.scenarios.stand import Stand, opened
from jobqueue.core.errors import Conflict, InvalidArgument

ENVIRONMENT = "environment.json"
_PACKAGES = ("grpcio", "protobuf", "uvloop", "asyncpg", "redis", "confluent-kafka", "hdrhistogram")
_NEAR = 0.9  # of a core: above it the generator may be the limit
_LIMIT_SECONDS = 2.0
_SYSTEM = "this process and its programs"


class RunProgress(Protocol):
    """Receives the progress of a benchmark."""

    def begin(self, runs: int) -> None:
        """Show that ``runs`` runs follow."""
        ...

    def doing(self, text: str) -> None:
        """Show the present activity."""
        ...

    def done(self) -> None:
        """Count a run as ended."""
        ...

    def more(self) -> None:
        """Count an additional run, because a disturbed run is repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Wish:
    """Describes the benchmark that a user started: its profile, output folder and place."""

    profile: Profile
    out: Path
    place: RunPlace = RunPlace.PROCESSES
    at: Mapping[str, Sequence[str]] = field(default_factory=dict)  # running topologies
    compose: Path = containers.COMPOSE  # the folder of compose files
    commit: str = "unknown"
    command: str = ""
    stamp: str = field(default_factory=lambda: f"{time.time_ns():x}")  # makes its keys unique

    def check(self) -> None:
        """Raise Conflict or InvalidArgument if the benchmark cannot run. Starts nothing."""
        if (self.out / records.FILE).exists():
            raise Conflict(
                f"--out: {self.out} has the records of an earlier run; choose another folder"
            )
        names = {shape.topology for shape in self.profile.shapes()}
        elsewhere = "--at" if self.at else "--place" if self.in_containers else ""
        if elsewhere and self.profile.chosen():
            raise InvalidArgument(
                elsewhere,
                "scenarios start their own programs as processes and cannot use this option;"
                " choose a profile without scenarios",
            )
        for name in self.at:
            if name not in names:
                raise InvalidArgument("--at", f"{name!r} is not a topology of this profile")
        if self.at and names - set(self.at):
            raise InvalidArgument(
                "--at",
                f"the address of {', '.join(sorted(names - set(self.at)))} is missing; give the"
                " address of every topology, because topologies that already run are not compared"
                " with topologies that jq-bench starts",
            )
        if self.in_containers:
            containers.check(self.compose, self.topologies)

    @property
    def in_containers(self) -> bool:
        """Return True if the benchmark starts containers."""
        return self.place is RunPlace.CONTAINERS and not self.at

    @property
    def topologies(self) -> list[str]:
        """Return the distinct names of the topologies that are measured."""
        return list(dict.fromkeys(shape.topology for shape in self.profile.shapes()))


@dataclass(frozen=True, slots=True)
class _Run:
    cell: Cell
    repetition: int
    attempt: int = 1


async def run(wish: Wish, progress: RunProgress) -> list[RunRecord]:
    """Run the profile and return its records. Each record is written to disk when its run ends."""
    wish.check()
    profile = wish.profile
    blocks: list[Topology | Scenario] = [*profile.shapes(), *profile.chosen()]
    progress.begin(profile.runs)
    inside = {}
    if wish.in_containers:
        inside["containers"] = await containers.described(wish.compose, wish.topologies)
    wish.out.mkdir(parents=True, exist_ok=True)
    environment = {**environment_of(wish), **inside}
    if profile.topologies:
        progress.doing("the generator's own limit")
        seconds = min(_LIMIT_SECONDS, profile.seconds)
        environment["generator_limit"] = await generator_limit(seconds)
    made: list[RunRecord] = []
    draw = random.Random(profile.seed)
    repeats = iter(range(profile.repeats))  # of disturbed runs
    async with contextlib.AsyncExitStack() as stack:
        stand = Stand(wish.out)
        if profile.scenarios:
            progress.doing("starting the servers of the scenarios")
            needed = dict.fromkeys(name for one in profile.chosen() for name in one.services)
            stand = await stack.enter_async_context(opened(needed, profile.calm))
            environment["services"] = await stand.described()
        _write(wish.out, environment)
        for repetition in range(1, profile.repetitions + 1):
            for one in draw.sample(blocks, len(blocks)):
                if isinstance(one, Scenario):
                    measured = _scenario(wish, one, repetition, stand, repeats, progress)
                else:
                    cells = profile.cells_of(one, wish.place)
                    block = [_Run(cell, repetition) for cell in draw.sample(cells, len(cells))]
                    measured = _block(wish, one, block, repeats, progress)
                async for record in measured:
                    record.order = len(made) + 1
                    records.append(wish.out, record)
                    made.append(record)
    fairness.check_records(made)
    return made


async def _scenario(
    wish: Wish,
    scenario: Scenario,
    repetition: int,
    stand: Stand,
    repeats: Iterator[int],
    progress: RunProgress,
) -> AsyncIterator[RunRecord]:
    """Run a scenario, and run it a second time if the first run was disturbed."""
    profile = wish.profile
    cell = Cell(scenario.topology, scenario=scenario.name)
    doing = f"{scenario.topology}, repetition {repetition}: {scenario.name}"
    stand.sizes = profile.all_sizes()
    stand.say = lambda text: progress.doing(f"{doing}: {text}")
    for again in (False, True):
        progress.doing(doing)
        record = _begun(wish, cell, repetition)
        record.warm_up = record.seconds = 0.0  # a scenario has its own durations
        record.sizes = msgspec.structs.asdict(stand.sizes)
        # The stand's servers are children of this process, too.
        cpu = machine.CpuTimes({}, {_SYSTEM: os.getpid()}, own="")
        record.figures = await scenario.measure()(stand)
        _put_others(record, cpu.spent(), profile.others)
        if record.machine.disturbed and not again and next(repeats, None) is not None:
            progress.more()
            progress.done()
        else:
            yield record
            progress.done()
            return


async def _block(
    wish: Wish, shape: Topology, block: list[_Run], repeats: Iterator[int], progress: RunProgress
) -> Any:
    """Start one topology, run its cells, and yield their records."""
    profile = wish.profile
    name = shape.topology
    progress.doing(f"{name}: waiting for an idle machine")
    await machine.calm(profile.calm)
    progress.doing(f"{name}: starting")
    for slots in sorted({run.cell.slots for run in block}):
        waiting = [run for run in block if run.cell.slots == slots]
        first = waiting[0].cell
        if wish.at:
            context = running_at(first, wish.at[name])
        elif wish.in_containers:
            context = in_containers(first, wish.compose)
        else:
            context = brought_up(first)
        async with context as ground, database.connected(ground.database) as connection:
            demanding = (run.cell.rows or run.cell.pressure is not Pressure.NONE for run in waiting)
            if connection is None and any(demanding):
                raise InvalidArgument(
                    "--at", "rows and pressure need a PostgreSQL that jq-bench starts: omit --at"
                )
            progress.doing(f"{name}: counting its slots")
            await fairness.check_slots(ground.target, slots, name)
            # Rows are never removed, so the cells with the fewest rows are measured first.
            waiting.sort(key=lambda run: run.cell.rows)
            rows = 0
            while waiting:
                run = waiting.pop(0)
                if run.cell.rows > rows:
                    rows = run.cell.rows
                    await fill(connection, rows, progress.doing)
                progress.doing(f"{name}, repetition {run.repetition}: {described(run.cell)}")
                record = await _measure(wish, run, ground, connection)
                if (
                    record.machine.disturbed
                    and run.attempt == 1
                    and next(repeats, None) is not None
                ):
                    again = sum(one.cell.rows <= run.cell.rows for one in waiting)
                    waiting.insert(again, _Run(run.cell, run.repetition, run.attempt + 1))
                    progress.more()
                else:
                    yield record
                progress.done()


async def _measure(wish: Wish, run: _Run, ground: Ground, connection: Any) -> RunRecord:
    profile, cell = wish.profile, run.cell
    record = _begun(wish, cell, run.repetition)
    seed = record.seed
    # The keys are the same in every topology, so that the same nodes own them.
    tag = f"{wish.stamp}-{seed:x}-{run.attempt}"
    async with contextlib.AsyncExitStack() as stack:
        load = stack.enter_context(LoadGenerator(ground.target, cell, profile, seed=seed, tag=tag))
        await stack.enter_async_context(database.pressed(ground.database, cell.pressure))
        await load.warm_up()
        cpu = machine.CpuTimes({}, ground.pids, own=machine.GENERATOR, meters=ground.meters)
        async with database.watched(connection) as watch:
            used, began = time.process_time(), time.perf_counter()
            await load.requests()
            generator = (time.process_time() - used) / (time.perf_counter() - began)
            await load.latest_ended()
            spent = cpu.spent()
        await load.account()
        if watch is not None:
            record.machine.database = await watch.spent(load.jobs.ended)
        await load.job_after_job()
        await load.listings()
        load.fill(record)
    _put_machine(record, ground, spent, generator, profile.others)
    ground.check()
    return record


def _begun(wish: Wish, cell: Cell, repetition: int) -> RunRecord:
    profile = wish.profile
    return RunRecord(
        profile=profile.name,
        cell=cell,
        repetition=repetition,
        order=0,
        seed=profile.seed_of(cell, repetition),
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        warm_up=profile.warm_up,
        seconds=profile.seconds,
    )


def _put_machine(
    record: RunRecord, ground: Ground, spent: machine.CpuSpent, generator: float, allowed: float
) -> None:
    found = record.machine
    found.peak_bytes = {machine.GENERATOR: machine.peak_bytes(os.getpid()), **ground.peaks}
    found.generator = generator
    if ground.pids or ground.containers:
        _put_others(record, spent, allowed)
    else:
        found.seconds, found.cpu = spent.elapsed, spent.seconds
        found.stolen = spent.stolen / spent.elapsed
        record.notes.append(
            "the topology runs elsewhere: the processor time of its parts and of other programs is"
            " not known"
        )
    if generator > _NEAR:
        record.notes.append(f"the generator used {generator:.0%} of a core: it may be the limit")


def _put_others(record: RunRecord, spent: machine.CpuSpent, allowed: float) -> None:
    found = record.machine
    found.seconds, found.cpu = spent.elapsed, spent.seconds
    found.others = spent.others / spent.elapsed
    found.stolen = spent.stolen / spent.elapsed
    found.disturbed = found.others > allowed or found.stolen > allowed
    if found.disturbed:
        record.notes.append(
            f"other programs used {found.others:.2f} cores, the host took {found.stolen:.2f};"
            f" {allowed:g} are allowed"
        )


def described(cell: Cell) -> str:
    """Return a cell's load as one line of text."""
    mix = "/".join(f"{share} {method}" for method, share in cell.mix.items() if share)
    how = f"{cell.callers} caller{'s'[: cell.callers > 1]}"
    if cell.rate is not None:
        how = f"{cell.rate:g} requests a second"
    parts = [how, mix, f"{cell.work_ms} ms jobs"]
    if cell.payload_bytes:
        parts.append(f"{cell.payload_bytes} bytes of output")
    if cell.key_ratio:
        skew = f", skewed by {cell.key_skew:g}" if cell.key_skew else ""
        parts.append(f"{cell.key_ratio:.0%} keys{skew}")
    if cell.batch > 1:
        parts.append(f"batches of {cell.batch}")
    if cell.rows:
        parts.append(f"{cell.rows:,} jobs there before")
    if cell.pressure is not Pressure.NONE:
        parts.append(str(cell.pressure))
    return ", ".join(parts)


def environment_of(wish: Wish) -> dict[str, Any]:
    """Return the machine, the versions and the command of a benchmark. Its folder must exist."""
    versions = {"python": platform.python_version(), "jobqueue": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "machine": machine.described(wish.out),
        "versions": versions,
        "commit": wish.commit,
        "command": wish.command or " ".join(sys.argv),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "place": str(wish.place),
        "profile": wish.profile.as_json(),
    }


def _write(folder: Path, environment: Mapping[str, Any]) -> None:
    text = json.dumps(environment, indent=2, ensure_ascii=False)
    (folder / ENVIRONMENT).write_text(text + "\n")
