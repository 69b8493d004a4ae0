"""Define measures: each reads one figure from a run record, for reports and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from hdrh.histogram import HdrHistogram

from jobqueue.bench.cell import PRIMARY, Method
from jobqueue.bench.intervals import Interval, interval
from jobqueue.bench.machine import GENERATOR
from jobqueue.bench.records import TO_DONE, Counts, Figure, RunRecord, histogram

NEAR_LIMIT = 0.8  # of a core: above it the generator itself may limit a figure
PERCENTILES = (50, 95, 99)
_MICRO = 1e6
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measure:
    """Reads one kind of figure from a run record.

    ``of`` returns None if the record has no such figure.
    """

    name: str
    unit: str
    more_is_better: bool
    of: Callable[[RunRecord], float | None]
    by_generator: bool = True  # whether a generator at its limit would spoil the figure

    @property
    def better(self) -> str:
        """Return a text that says whether more or less is better."""
        return "more is better" if self.more_is_better else "less is better"


def answered_well(counts: Iterable[Counts]) -> int:
    """Count the requests that succeeded or had a soft outcome, such as a full queue.

    Errors do not count, because fast errors must not look like speed.
    """
    return sum(one.ok + sum(one.soft.values()) for one in counts)


def primary(record: RunRecord) -> list[Counts]:
    """Return the counts of submit, status, result and cancel requests, which reports compare."""
    return [record.counts[one] for one in PRIMARY if one in record.counts]


def _requests(record: RunRecord) -> float | None:
    counts = primary(record)
    return answered_well(counts) / record.seconds if counts else None


def _listings(record: RunRecord) -> float | None:
    counts = record.counts.get(Method.LIST)
    if not counts or not record.cell.mix.get(Method.LIST):
        return None  # list requests outside of the load measure times, not a rate
    return answered_well([counts]) / record.seconds


def _jobs(record: RunRecord) -> float | None:
    return record.jobs.a_second if record.jobs.submitted else None


def parts(record: RunRecord) -> dict[str, float]:
    """Return the processor time per job in microseconds, by part of the system."""
    ended = record.jobs.ended
    if not ended:
        return {}
    return {
        part: spent * _MICRO / ended
        for part, spent in record.machine.cpu.items()
        if part != GENERATOR
    }


def memory_parts(record: RunRecord) -> dict[str, float]:
    """Return the peak memory in MiB, by part of the system."""
    held = record.machine.peak_bytes
    return {part: size / _MIB for part, size in held.items() if part != GENERATOR}


def _cost(record: RunRecord) -> float | None:
    return sum(parts(record).values()) or None


def _cost_of_request(record: RunRecord) -> float | None:
    answered = answered_well(record.counts[one] for one in Method if one in record.counts)
    spent = sum(s for part, s in record.machine.cpu.items() if part != GENERATOR)
    return spent * _MICRO / answered if answered and spent else None


def _cost_of_caller(record: RunRecord) -> float | None:
    answered = answered_well(primary(record))
    spent = record.machine.cpu.get(GENERATOR)
    return spent * _MICRO / answered if answered and spent else None


def _memory(record: RunRecord) -> float | None:
    return sum(memory_parts(record).values()) or None


REQUESTS = Measure("requests a second", "req/s", True, _requests)
JOBS = Measure("jobs done a second", "jobs/s", True, _jobs)
LISTINGS = Measure("list requests a second", "req/s", True, _listings)
COST = Measure("processor time per job", "µs", False, _cost, by_generator=False)
COST_OF_REQUEST = Measure(
    "processor time per request", "µs", False, _cost_of_request, by_generator=False
)
COST_OF_CALLER = Measure(
    "client's processor time per request", "µs", False, _cost_of_caller, by_generator=False
)
MEMORY = Measure("peak memory", "MiB", False, _memory, by_generator=False)


@cache
def latency(what: str, percentile: int) -> Measure:
    """Return the measure of a percentile of a method's latency, or of the time to a job's end."""

    def of(record: RunRecord) -> float | None:
        encoded = record.latencies.get(what)
        return _percentiles(encoded).get(percentile) if encoded else None

    return Measure(f"{what} p{percentile}", "ms", False, of)


@dataclass(frozen=True, slots=True)
class Measured:
    """Holds a figure of a scenario over its repetitions.

    Disturbed repetitions are left out, unless all repetitions were disturbed.
    """

    runs: list[RunRecord]
    last: Figure  # of the last repetition: its conditions are shown
    value: Interval

    @property
    def disturbed(self) -> bool:
        """Return True if every repetition was disturbed."""
        return all(run.machine.disturbed for run in self.runs)

    @property
    def met(self) -> bool:
        """Return True if the mean meets the target, or if the figure has no target."""
        return replace(self.last, value=self.value.mean).met

    @property
    def target(self) -> str:
        """Return the target as text, empty if the figure has no target."""
        if self.last.target is None:
            return ""
        return f"{'≥' if self.last.more_is_better else '≤'} {self.last.target:,g}"


def measured(records: Iterable[RunRecord]) -> list[Measured]:
    """Return the figures of all scenarios, sorted by topology and scenario."""
    found: dict[tuple[str, str, str], list[tuple[RunRecord, Figure]]] = {}
    for record in records:
        for figure in record.figures:
            key = (record.cell.topology, record.cell.scenario, figure.name)
            found.setdefault(key, []).append((record, figure))
    made = []
    for _, some in sorted(found.items(), key=lambda one: one[0][:2]):
        calm = [one for one in some if not one[0].machine.disturbed] or some
        value = interval([figure.value for _, figure in calm])
        made.append(Measured([record for record, _ in some], calm[-1][1], value))
    return made


@cache
def figure(name: str, unit: str, more_is_better: bool) -> Measure:
    """Return the measure that reads a scenario's figure by its name."""

    def of(record: RunRecord) -> float | None:
        return next((one.value for one in record.figures if one.name == name), None)

    return Measure(name, unit, more_is_better, of)


@cache
def typical(what: str) -> Measure:
    """Return the measure of a method's median latency. A single value is enough."""

    def of(record: RunRecord) -> float | None:
        times = histogram(record.latencies.get(what))
        return times.get_value_at_percentile(50) / 1e3 if times.get_total_count() else None

    return Measure(f"{what}, median", "ms", False, of)


LISTED = typical(Method.LIST)
TIMED = (*PRIMARY, TO_DONE)
ALL = (
    REQUESTS,
    JOBS,
    *(latency(what, one) for what in TIMED for one in PERCENTILES),
    COST,
    COST_OF_REQUEST,
    COST_OF_CALLER,
    MEMORY,
    LISTINGS,
    LISTED,
    *(latency(Method.LIST, one) for one in PERCENTILES),
)


@lru_cache(maxsize=65_536)
def _percentiles(encoded: str) -> dict[int, float]:
    """Return the percentiles in ms. Percentiles for which too few values exist are left out."""
    times = histogram(encoded)
    count = times.get_total_count()
    told = [one for one in PERCENTILES if count * (100 - one) >= 100]
    found = times.get_percentile_to_value_dict(told) if told else {}
    return {one: value / 1e3 for one, value in found.items()}


def quantiles(times: HdrHistogram, shares: Iterable[float]) -> list[float]:
    """Return the quantiles of a histogram in ms, for a curve."""
    wanted = [share * 100 for share in shares]
    found = times.get_percentile_to_value_dict(wanted)
    return [found[one] / 1e3 for one in wanted]
