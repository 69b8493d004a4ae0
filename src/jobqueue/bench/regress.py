"""Test NEW for a loss against BASE, by the ratios of runs that were made side by side.

Repetition k of BASE and repetition k of NEW ran one after the other, so the machine's influence
cancels out in their ratio. The test is Student's, one-sided, on the logarithms of the ratios. It
leaves out the most extreme tenth at each end (Yuen's trimmed mean): a burst of other load hits one
run of a pair, and must neither raise an alarm nor hide a loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, stdev

from jobqueue.bench.cell import Cell
from jobqueue.bench.intervals import student
from jobqueue.bench.measures import COST, JOBS, REQUESTS, Measure, figure, latency
from jobqueue.bench.records import TO_DONE, RunRecord
from jobqueue.core.errors import InvalidArgument

FALSE_ALARMS = 0.05  # at most this share of comparisons of equal builds ends with a loss
POWER = 0.9  # a loss as large as the stated one is found in this share of comparisons
TOLERATED = 0.02  # smaller losses do not count: equal sources in other folders differ as much
WANTED = 0.15  # the smallest detectable loss has to be this or less
FEWEST_PAIRS = 5
ALL_CELLS = "all cells"

_TRIMMED = 0.1
_TIME = latency(TO_DONE, 50)
_MEASURES = (COST, JOBS, REQUESTS, _TIME)
_TAIL = "p99"  # of a scenario's times: too few values lie beyond it
_FAILED = 0.01  # a failed share that exceeds BASE's by more than this is a loss


@dataclass(frozen=True, slots=True)
class RegressRow:
    """Describes the change of one measure in one cell, or in all cells together."""

    cell: str
    measure: Measure
    pairs: int
    change: float  # NEW against BASE, as a share: -0.1 is a tenth less
    low: float  # of the change
    high: float
    confidence: float  # in low to high: by the row's share of the error rate
    detectable: float  # the smallest loss that would be found, as a share
    lost: bool
    spread: float  # standard deviation of a pair's log ratio

    @property
    def gained(self) -> bool:
        """Return True if the whole confidence interval shows an improvement."""
        return self.low > 0 if self.measure.more_is_better else self.high < 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds the result of comparing two builds by pairs of runs."""

    rows: list[RegressRow]
    left_out: int  # pairs with a disturbed run
    unpaired: int  # runs without a partner
    failures: list[str]  # cells in which more requests fail

    @property
    def lost(self) -> list[RegressRow]:
        """Return the rows with a significant loss."""
        return [row for row in self.rows if row.lost]

    @property
    def worse(self) -> bool:
        """Return True if NEW has a significant loss, or more failures in some cell."""
        return bool(self.lost or self.failures)

    @property
    def widest(self) -> list[RegressRow]:
        """Return each measure's row that covers all cells together.

        A measure with values in a single cell has the row of this cell.
        """
        together = {row.measure for row in self.rows if row.cell == ALL_CELLS}
        return [row for row in self.rows if (row.cell == ALL_CELLS) == (row.measure in together)]

    @property
    def detectable(self) -> float:
        """Return the smallest loss of the whole build that every measure would show."""
        return max(row.detectable for row in self.widest)

    def pairs_needed(self, wanted: float = WANTED) -> int:
        """Estimate the number of pairs that would show a loss of ``wanted``.

        The interval shrinks with the square root of the number of pairs.
        """
        most = 0
        for row in self.widest:
            aim = math.log1p(wanted) - math.log1p(TOLERATED)
            now = math.log1p(row.detectable) - math.log1p(TOLERATED)
            most = max(most, math.ceil(row.pairs * (now / aim) ** 2))
        return most


@dataclass(frozen=True, slots=True)
class _Pair:
    repetition: int
    base: RunRecord
    new: RunRecord

    @property
    def disturbed(self) -> bool:
        return self.base.machine.disturbed or self.new.machine.disturbed


def compare(base: Iterable[RunRecord], new: Iterable[RunRecord]) -> Comparison:
    """Test every cell that both builds ran.

    Raises InvalidArgument unless the runs alternate in pairs.
    """
    pairs, unpaired = _pairs(list(base), list(new))
    calm = {cell: [one for one in some if not one.disturbed] for cell, some in pairs.items()}
    enough = all(len(some) >= FEWEST_PAIRS for some in calm.values())
    used = calm if enough else pairs
    measures = (*_MEASURES, *_figures(used))
    found = {one: by_cell for one in measures if (by_cell := _losses(one, used))}
    if not found:
        raise InvalidArgument(
            "NEW", f"no measure has a value in {FEWEST_PAIRS} pairs of a cell; make more pairs"
        )
    several = sum(len(by_cell) > 1 for by_cell in found.values())
    # Half of the error rate is for the cells together, half for each of them.
    together = FALSE_ALARMS / 2 / max(1, several)
    alone = (FALSE_ALARMS / 2 if several else FALSE_ALARMS) / sum(map(len, found.values()))
    rows = []
    for measure, by_cell in found.items():
        if len(by_cell) > 1:
            rows.append(_row(ALL_CELLS, measure, _mean_by_repetition(by_cell), together))
        for cell, losses in by_cell.items():
            rows.append(_row(cell, measure, list(losses.values()), alone))
    return Comparison(
        rows,
        left_out=sum(map(len, pairs.values())) - sum(map(len, used.values())),
        unpaired=unpaired,
        failures=[name for name, some in used.items() if _fails_more(some)],
    )


def _pairs(
    base: Sequence[RunRecord], new: Sequence[RunRecord]
) -> tuple[dict[str, list[_Pair]], int]:
    """Return the pairs by the name of their cell, and the number of runs without a partner."""
    known = {_key(one): one for one in base}
    pairs: dict[str, list[_Pair]] = {}
    for one in new:
        if _key(one) in known:
            pair = _Pair(one.repetition, known[_key(one)], one)
            pairs.setdefault(one.cell.key, []).append(pair)
    matched = sum(map(len, pairs.values()))
    if not matched:
        raise InvalidArgument("NEW", "has no run with the cell and repetition of a run in BASE")
    fewest = min(map(len, pairs.values()))
    if fewest < FEWEST_PAIRS:
        raise InvalidArgument(
            "NEW",
            f"{fewest} pairs of a cell are too few to compare; make {FEWEST_PAIRS} pairs or more",
        )
    for some in pairs.values():
        _require_alternation(some)
    names = _names([some[0].new.cell for some in pairs.values()])
    named = dict(zip(names, pairs.values(), strict=True))
    return named, len(base) + len(new) - 2 * matched


def _key(record: RunRecord) -> tuple[object, ...]:
    sizes = tuple(record.sizes.items())
    return record.cell.key, record.repetition, record.warm_up, record.seconds, sizes


def _require_alternation(pairs: Sequence[_Pair]) -> None:
    """Raise InvalidArgument unless the two runs of each pair follow each other.

    A machine changes over a day, so runs that were made hours apart cannot be compared.
    """
    runs = [(datetime.fromisoformat(run.began), one.repetition)
            for one in pairs for run in (one.base, one.new)]  # fmt: skip
    order = [repetition for _, repetition in sorted(runs)]
    if order[::2] != order[1::2]:
        raise InvalidArgument(
            "NEW", "BASE and NEW were not run in alternating pairs: make them with jq-bench pairs"
        )


def _names(cells: Sequence[Cell]) -> list[str]:
    """Return a different name for each cell, made of the factors that differ."""
    shown = [cell.as_json() for cell in cells if not cell.scenario]
    varied = [
        part for part in Cell("").as_json() if any(one[part] != shown[0][part] for one in shown)
    ]
    return [
        f"{cell.topology} {cell.scenario}" if cell.scenario else
        ", ".join([cell.topology, *(f"{part} {_shown(cell.as_json()[part])}" for part in varied
                                    if part != "topology")])
        for cell in cells
    ]  # fmt: skip


def _figures(pairs: dict[str, list[_Pair]]) -> list[Measure]:
    """Return the measures of all scenario figures, except p99, which depends on too few values."""
    found = [one for some in pairs.values() for pair in some for one in pair.new.figures]
    made = (figure(one.name, one.unit, one.more_is_better) for one in found)
    return [one for one in dict.fromkeys(made) if not one.name.endswith(_TAIL)]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ":".join(f"{name} {share}" for name, share in value.items())
    return str(value)


def _losses(measure: Measure, pairs: dict[str, list[_Pair]]) -> dict[str, dict[int, float]]:
    """Return, by cell and repetition, the logarithm of how much worse NEW is than BASE."""
    found: dict[str, dict[int, float]] = {}
    for cell, some in pairs.items():
        # An open loop has a fixed rate, so its speed shows in the time until done.
        open_loop = some[0].new.cell.rate is not None
        if (measure in (JOBS, REQUESTS) and open_loop) or (measure is _TIME and not open_loop):
            continue
        losses = {}
        for one in some:
            before, after = measure.of(one.base), measure.of(one.new)
            if before and after:
                ratio = math.log(after / before)
                losses[one.repetition] = -ratio if measure.more_is_better else ratio
        if len(losses) >= FEWEST_PAIRS:
            found[cell] = losses
    return found


def _mean_by_repetition(by_cell: dict[str, dict[int, float]]) -> list[float]:
    repetitions = sorted({one for losses in by_cell.values() for one in losses})
    return [
        fmean(losses[one] for losses in by_cell.values() if one in losses) for one in repetitions
    ]


def _row(cell: str, measure: Measure, losses: list[float], error_rate: float) -> RegressRow:
    middle, error, degrees = trimmed(losses)
    away = student(1 - error_rate, degrees)
    detectable = math.log1p(TOLERATED) + (away + student(POWER, degrees)) * error
    # A loss is a rise of a cost, or a fall of a rate.
    sign = -1 if measure.more_is_better else 1
    ends = sorted(math.expm1(sign * (middle + side * away * error)) for side in (-1, 1))
    return RegressRow(
        cell=cell,
        measure=measure,
        pairs=len(losses),
        change=math.expm1(sign * middle),
        low=ends[0],
        high=ends[1],
        confidence=1 - 2 * error_rate,
        detectable=abs(math.expm1(sign * detectable)),
        lost=middle - away * error > math.log1p(TOLERATED),
        spread=stdev(losses),
    )


def trimmed(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the trimmed mean, its standard error and its degrees of freedom.

    The mean leaves out the most extreme tenth of ``values`` at each end.
    """
    ordered, count = sorted(values), len(values)
    cut = int(_TRIMMED * count)
    kept = ordered[cut : count - cut]
    pulled_in = [kept[0]] * cut + kept + [kept[-1]] * cut
    error = stdev(pulled_in) * math.sqrt(count) / len(kept)
    return fmean(kept), error, len(kept) - 1


def _fails_more(pairs: Sequence[_Pair]) -> bool:
    return _failed(one.new for one in pairs) > _failed(one.base for one in pairs) + _FAILED


def _failed(records: Iterable[RunRecord]) -> float:
    """Return the share of requests with an error or no answer, and of jobs still open."""
    begun = failed = 0
    for record in records:
        for one in record.counts.values():
            begun += one.total
            failed += sum(one.errors.values()) + one.unfinished
        begun += record.jobs.submitted
        failed += record.jobs.open
    return failed / begun if begun else 0.0
