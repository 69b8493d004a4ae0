"""What is read off a record: one way of counting for reports and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from hdrh.histogram import HdrHistogram

from jobqueue.bench.cell import PRIMARY, Method
from jobqueue.bench.machine import GENERATOR
from jobqueue.bench.records import TO_DONE, Counts, Record, histogram

NEAR_LIMIT = 0.8  # of a core: from here on the generator may be what limits a figure
PERCENTILES = (50, 95, 99)
_MICRO = 1e6
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of figure. ``of`` is None where a record has none."""

    name: str
    unit: str
    more_is_better: bool
    of: Callable[[Record], float | None]
    by_generator: bool = True  # whether a generator at its limit would spoil the figure

    @property
    def better(self) -> str:
        """For a reader."""
        return "more is better" if self.more_is_better else "less is better"


def answered_well(counts: Iterable[Counts]) -> int:
    """Requests with the answer of a healthy system: the others must not look like speed."""
    return sum(one.ok + sum(one.soft.values()) for one in counts)


def primary(record: Record) -> list[Counts]:
    """Of the four methods that are compared."""
    return [record.counts[one] for one in PRIMARY if one in record.counts]


def _requests(record: Record) -> float | None:
    counts = primary(record)
    return answered_well(counts) / record.seconds if counts else None


def _listings(record: Record) -> float | None:
    counts = record.counts.get(Method.LIST)
    if not counts or not record.cell.mix.get(Method.LIST):
        return None  # a few that were asked for their times are no rate
    return answered_well([counts]) / record.seconds


def _jobs(record: Record) -> float | None:
    return record.jobs.a_second if record.jobs.submitted else None


def parts(record: Record) -> dict[str, float]:
    """Microseconds of processor time per job, by part of the system."""
    ended = record.jobs.ended
    if not ended:
        return {}
    return {
        part: spent * _MICRO / ended
        for part, spent in record.machine.cpu.items()
        if part != GENERATOR
    }


def memory_parts(record: Record) -> dict[str, float]:
    """MiB at the peak, by part of the system."""
    held = record.machine.peak_bytes
    return {part: size / _MIB for part, size in held.items() if part != GENERATOR}


def _cost(record: Record) -> float | None:
    return sum(parts(record).values()) or None


def _cost_of_request(record: Record) -> float | None:
    answered = answered_well(record.counts[one] for one in Method if one in record.counts)
    spent = sum(s for part, s in record.machine.cpu.items() if part != GENERATOR)
    return spent * _MICRO / answered if answered and spent else None


def _memory(record: Record) -> float | None:
    return sum(memory_parts(record).values()) or None


REQUESTS = Measure("requests a second", "req/s", True, _requests)
JOBS = Measure("jobs done a second", "jobs/s", True, _jobs)
LISTINGS = Measure("list requests a second", "req/s", True, _listings)
COST = Measure("processor time per job", "µs", False, _cost, by_generator=False)
COST_OF_REQUEST = Measure(
    "processor time per request", "µs", False, _cost_of_request, by_generator=False
)
MEMORY = Measure("peak memory", "MiB", False, _memory, by_generator=False)


@cache
def latency(what: str, percentile: int) -> Measure:
    """A percentile of a method's times, or of ``TO_DONE``."""

    def of(record: Record) -> float | None:
        encoded = record.latencies.get(what)
        return _percentiles(encoded).get(percentile) if encoded else None

    return Measure(f"{what} p{percentile}", "ms", False, of)


TIMED = (*PRIMARY, TO_DONE)
ALL = (
    REQUESTS,
    JOBS,
    *(latency(what, one) for what in TIMED for one in PERCENTILES),
    COST,
    COST_OF_REQUEST,
    MEMORY,
    LISTINGS,
    *(latency(Method.LIST, one) for one in PERCENTILES),
)


@lru_cache(maxsize=65_536)
def _percentiles(encoded: str) -> dict[int, float]:
    """In ms. A percentile of fewer values than one beyond it would be their maximum."""
    times = histogram(encoded)
    count = times.get_total_count()
    told = [one for one in PERCENTILES if count * (100 - one) >= 100]
    found = times.get_percentile_to_value_dict(told) if told else {}
    return {one: value / 1e3 for one, value in found.items()}


def quantiles(times: HdrHistogram, shares: Iterable[float]) -> list[float]:
    """In ms, for a curve."""
    wanted = [share * 100 for share in shares]
    found = times.get_percentile_to_value_dict(wanted)
    return [found[one] / 1e3 for one in wanted]
