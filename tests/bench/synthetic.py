"""Records as a run would leave them, made up from a seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from jobqueue.bench import records
from jobqueue.bench.cell import Cell, Method
from jobqueue.bench.records import TO_DONE, Counts, JobEnds, Machine, RunRecord, histogram

BEGAN = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
SAMPLES = 400  # times in a histogram: enough for a 99th percentile
MIX = {Method.SUBMIT: 2, Method.STATUS: 2, Method.RESULT: 1, Method.CANCEL: 1}


@dataclass(frozen=True, slots=True)
class Build:
    """How fast a topology is, and what it costs. The rate saturates with the callers."""

    request_ms: float = 2.0
    most: float = 2000.0  # requests a second
    cpu_us: float = 900.0
    parts: tuple[str, ...] = ("node 1", "node 2")
    mib: float = 60.0  # of each part

    def slowed(self, by: float) -> Build:
        """With a share more of everything that a request takes."""
        return replace(
            self,
            request_ms=self.request_ms * (1 + by),
            most=self.most / (1 + by),
            cpu_us=self.cpu_us * (1 + by),
        )


@dataclass(frozen=True, slots=True)
class Noise:
    """Of one run, as standard deviations of logarithms, on a machine with two cores.

    A burst is somebody else's load during a run: it takes from the rate, and caches go cold.
    """

    rate: float = 0.10
    cpu: float = 0.04
    bursts: float = 0.05  # the share of runs that have one
    burst_rate: float = 0.35
    burst_cpu: float = 0.12


SERVICES = Build(3.0, 1300.0, 1500.0, ("gateway", "jobs", "queue", "coordinator", "worker"), 45.0)
NODES = Build(1.8, 2100.0, 850.0, tuple(f"node {n}" for n in range(1, 7)), 55.0)


def record(
    cell: Cell,
    build: Build,
    repetition: int,
    random: Random,
    noise: Noise | None = None,
    *,
    timed: bool = True,
    drift: float = 0.0,
    began: datetime = BEGAN,
) -> RunRecord:
    """One run. ``drift`` is what the machine does to all runs of that hour."""
    noise = noise or Noise()
    burst = random.random() < noise.bursts
    speed = random.gauss(drift, noise.rate) - burst * noise.burst_rate
    work = random.gauss(drift / 4, noise.cpu) + burst * noise.burst_cpu
    seconds = 10.0
    alone = cell.callers * 1000 / (build.request_ms + cell.work_ms / 10)
    rate = math.exp(speed) / (1 / alone + 1 / build.most)
    answered = {
        method: int(rate * seconds * share / sum(cell.mix.values()))
        for method, share in cell.mix.items()
    }
    submitted = answered.get(Method.SUBMIT, 0) * cell.batch
    canceled = answered.get(Method.CANCEL, 0) // 20
    cpu = submitted * build.cpu_us * math.exp(work) / 1e6
    made = RunRecord(
        profile="synthetic", cell=cell, repetition=repetition, order=0, seed=repetition,
        began=began.isoformat(), warm_up=2.0, seconds=seconds,
    )  # fmt: skip
    for method, count in answered.items():
        soft = count // 10 if method is Method.RESULT else 0
        codes = {"NOT_READY": soft} if soft else {}
        made.counts[str(method)] = Counts(ok=count - soft, soft=codes)
    if submitted:
        made.jobs = JobEnds(submitted, submitted - canceled, 0, canceled, 0, submitted / seconds)
    shares = [1 + (len(build.parts) - n) / 3 for n in range(len(build.parts))]
    made.machine = Machine(
        seconds=seconds,
        cpu={part: cpu * share / sum(shares)
             for part, share in zip(build.parts, shares, strict=True)}
        | {"generator": cpu * 0.4},
        peak_bytes={part: int(build.mib * 2**20 * random.uniform(0.97, 1.03))
                    for part in build.parts},
        others=0.05 + burst * 0.6,
        generator=min(0.97, rate / 2600),
        database={"WAL bytes a job": 900 + random.gauss(0, 10)},
    )  # fmt: skip
    if timed:
        typical = cell.callers * 1000 / rate
        middles = {
            **dict.fromkeys(map(str, answered), typical),
            TO_DONE: typical * 2 + cell.work_ms,
        }
        for what, middle in middles.items():
            made.latencies[what] = times(random, middle)
    return made


def times(random: Random, middle_ms: float) -> str:
    """A histogram as a record has it."""
    taken = histogram()
    for _ in range(SAMPLES):
        taken.record_value(max(1, int(middle_ms * 1000 * random.lognormvariate(0, 0.45))))
    return str(taken.encode().decode())


def pairs(
    cells: Iterable[Cell],
    base: Build,
    new: Build,
    count: int,
    random: Random,
    noise: Noise | None = None,
) -> tuple[list[RunRecord], list[RunRecord]]:
    """Runs of two builds as ``jq-bench pairs`` makes them: the one that begins changes."""
    cells, clock = list(cells), BEGAN
    sides: tuple[list[RunRecord], list[RunRecord]] = ([], [])
    for repetition in range(1, count + 1):
        drift = random.gauss(0, 0.1)  # the same for both: the machine of that minute
        for side in (0, 1) if repetition % 2 else (1, 0):
            for cell in cells:
                clock += timedelta(seconds=13)
                sides[side].append(
                    record(cell, (base, new)[side], repetition, random, noise,
                           timed=False, drift=drift, began=clock)
                )  # fmt: skip
    return sides


def write(
    folder: Path, made: Iterable[RunRecord], environment: dict[str, object] | None = None
) -> Path:
    """As a folder of results."""
    for one in made:
        records.append(folder, one)
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder
