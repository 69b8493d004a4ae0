"""Write and read the records of runs, from which all reports are made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from jobqueue.bench.cell import PRIMARY, Cell
from jobqueue.core.errors import InvalidArgument, NotFound

TO_DONE = "submit→done"
FILE = "records.jsonl"

_SHORTEST = 1  # µs
_LONGEST = 600 * 1_000_000  # µs
_DIGITS = 3


def histogram(encoded: str | None = None) -> HdrHistogram:
    """Return a histogram of times in µs with bounded memory, empty or decoded from ``encoded``."""
    made = HdrHistogram(_SHORTEST, _LONGEST, _DIGITS)
    if encoded:
        made.decode_and_add(encoded)
    return made


@dataclass(slots=True)
class Counts:
    """Counts the outcomes of a method's requests in the measured time.

    A soft outcome is an answer that a healthy system may give: a job has no result (yet) or ended
    before its cancel, or the queue is full or over its rate limit.
    """

    ok: int = 0
    soft: dict[str, int] = field(default_factory=dict)  # by code
    errors: dict[str, int] = field(default_factory=dict)  # by code
    unfinished: int = 0

    @property
    def total(self) -> int:
        """Return the number of requests that were started."""
        return self.ok + sum(self.soft.values()) + sum(self.errors.values()) + self.unfinished


@dataclass(slots=True)
class JobEnds:
    """Counts how the jobs submitted in the measured time ended: submitted = ended + open."""

    submitted: int = 0
    done: int = 0
    failed: int = 0
    canceled: int = 0
    open: int = 0  # not ended when the run stopped waiting
    a_second: float = 0.0  # jobs done per second, until the end of the last job

    @property
    def ended(self) -> int:
        """Return the number of jobs that are done, failed or canceled."""
        return self.done + self.failed + self.canceled


@dataclass(slots=True)
class Machine:
    """Holds the processor time and memory of a run, and how much other programs disturbed it."""

    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)  # seconds of processor by part
    peak_bytes: dict[str, int] = field(default_factory=dict)  # memory by part
    others: float = 0.0  # cores that other programs used
    stolen: float = 0.0  # cores that the host gave to others
    generator: float = 0.0  # of a core: near 1, the figure is the generator's own limit
    late_ms: float = 0.0  # open loop: how late requests began, 99th percentile
    disturbed: bool = False  # others had more than the profile allows
    database: dict[str, float] = field(default_factory=dict)  # WAL bytes a job, dead rows, waits


@dataclass(frozen=True, slots=True)
class Figure:
    """Describes one result of a scenario.

    A target is a minimum if more is better, and a maximum otherwise.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    how: str = ""  # the conditions, for a reader

    @property
    def more_is_better(self) -> bool:
        """Return True if a larger value is better: the figure is a rate, or a share of a rate."""
        return self.unit.endswith(("/s", "of the rate"))

    @property
    def met(self) -> bool:
        """Return True if the value meets the target, or if the figure has no target."""
        if self.target is None:
            return True
        return self.value >= self.target if self.more_is_better else self.value <= self.target


@dataclass(slots=True)
class RunRecord:
    """Records one run of a cell or of a scenario."""

    profile: str
    cell: Cell
    repetition: int
    order: int  # in which the cells of the profile were run
    seed: int
    began: str  # ISO 8601, UTC
    warm_up: float
    seconds: float  # of the counted stretch
    counts: dict[str, Counts] = field(default_factory=dict)  # by method and TO_DONE
    latencies: dict[str, str] = field(default_factory=dict)  # by method and TO_DONE: histograms
    jobs: JobEnds = field(default_factory=JobEnds)
    machine: Machine = field(default_factory=Machine)
    notes: list[str] = field(default_factory=list)  # oddities, for a reader
    figures: list[Figure] = field(default_factory=list)  # of a scenario
    sizes: dict[str, float] = field(default_factory=dict)  # of a scenario

    @property
    def requests_a_second(self) -> float:
        """Return the answered submit, status, result and cancel requests per second.

        Errors count as answers.
        """
        found = [self.counts[one] for one in PRIMARY if one in self.counts]
        answered = sum(one.total - one.unfinished for one in found)
        return answered / self.seconds

    def as_json(self) -> dict[str, Any]:
        """Return the record as a JSON object, which becomes a line of the records file."""
        return {**asdict(self), "cell": self.cell.as_json()}

    @classmethod
    def from_json(cls, parts: Mapping[str, Any]) -> RunRecord:
        """Build a record from its JSON object in the records file."""
        return cls(
            **{
                **parts,
                "cell": Cell.from_json(parts["cell"]),
                "counts": {name: Counts(**one) for name, one in parts["counts"].items()},
                "jobs": JobEnds(**parts["jobs"]),
                "machine": Machine(**parts["machine"]),
                "figures": [Figure(**one) for one in parts.get("figures", ())],
            }
        )


def append(folder: Path, record: RunRecord) -> None:
    """Append a record to the folder's file, so that an interrupted benchmark keeps earlier runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a") as file:
        file.write(json.dumps(record.as_json(), ensure_ascii=False) + "\n")


def read(folders: Iterable[Path]) -> Iterator[RunRecord]:
    """Yield the records of all folders. A last line that was cut off is skipped."""
    for folder in folders:
        if not (folder / FILE).is_file():
            raise NotFound(f"{folder} has no {FILE}: name a folder that jq-bench wrote")
        lines = (folder / FILE).read_text().splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                yield RunRecord.from_json(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                if not line.endswith("\n"):
                    return
                raise InvalidArgument(
                    str(folder / FILE), f"line {number} is not a record: {error!r}"
                ) from None
