"""Draw conclusions from figures by fixed rules, and write them as sentences.

A topology leads at a load if its interval does not overlap the interval of the second best
topology. No conclusion is drawn from a single repetition, from disturbed runs, or where the
generator may have slowed down the second best topology.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from jobqueue.bench.cell import PRIMARY, Method
from jobqueue.bench.intervals import CONFIDENCE, Interval
from jobqueue.bench.measures import (
    COST,
    JOBS,
    MEMORY,
    NEAR_LIMIT,
    PERCENTILES,
    REQUESTS,
    Measure,
    latency,
)
from jobqueue.bench.records import TO_DONE
from jobqueue.bench.report.study import LATE, Point, Spot, Study, Subject

# The measures of the main conclusions. BY_METHOD has a separate list of conclusions.
KEY = (REQUESTS, JOBS, latency(TO_DONE, 50), latency(TO_DONE, 99), COST, MEMORY)
BY_METHOD = tuple(latency(method, share) for method in PRIMARY for share in PERCENTILES)
_LIMIT = "over_grpc_requests_a_second"  # of an environment


class Why(Enum):
    """Names a reason why no topology leads."""

    OVERLAP = "intervals overlap"
    ONCE = "one repetition only"
    DISTURBED = "disturbed"
    LIMIT = "the generator's limit"

    @property
    def explained(self) -> str:
        """Return the reason as a part of a sentence."""
        return {
            Why.OVERLAP: "their 95 % intervals overlap",
            Why.ONCE: "one repetition has no interval",
            Why.DISTURBED: "something else used the processor during these runs",
            Why.LIMIT: "the load generator may have held the slower one back",
        }[self]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Names the leader in a measure at one load, or the reason why no topology leads."""

    spot: Spot
    leader: Subject | None = None
    ratio: float = 1.0
    at_least: bool = False  # the generator may have slowed the leader down
    why: Why | None = None

    @property
    def shown(self) -> str:
        """Return the ratio of the best topology to the second, or the reason why none leads."""
        if self.leader is None:
            return self.why.value if self.why else ""
        return f"{'≥ ' if self.at_least else ''}{times(self.ratio)}"


@dataclass(frozen=True, slots=True)
class Contest:
    """Compares topologies that ran in one place, or several places of one topology."""

    title: str
    names: dict[Subject, str]
    verdicts: dict[Measure, list[Verdict]]


@dataclass(frozen=True, slots=True)
class Statement:
    """Holds a sentence and the topic in front of it."""

    lead: str
    text: str


def times(ratio: float) -> str:
    """Format a ratio for readers: two decimals below 2, one decimal above."""
    return f"{ratio:.2f}×" if ratio < 1.995 else f"{ratio:.1f}×"


def number(value: float) -> str:
    """Format a figure for readers with about three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def with_interval(figure: Interval) -> str:
    """Format a mean with its confidence bounds."""
    if figure.low is None or figure.high is None:
        return number(figure.mean)
    return f"{number(figure.mean)} ({number(figure.low)}–{number(figure.high)})"


def shown(point: Point, measure: Measure) -> str:
    """Format a measure with its bounds. Returns "" if no run has a value.

    † marks disturbed runs, ‡ a figure that the generator may have limited.
    """
    figure = point.figure(measure)
    if figure is None:
        return ""
    marks = "†" if point.disturbed else ""
    marks += "‡" if point.near_limit and measure.by_generator else ""
    return with_interval(figure) + marks


def contests(study: Study) -> list[Contest]:
    """Return comparisons between topologies in one place (as processes, or in containers).

    Then follow comparisons between the places of one topology.
    """
    places = list(dict.fromkeys(one.where for one in study.subjects))
    kinds = list(dict.fromkeys(one.what for one in study.subjects))
    found = []
    for where in places:
        names = {one: one.what for one in study.subjects if one.where == where}
        found.append((f"in {where}" if where else "", names))
    for what in kinds if study.same_machine else []:
        names = {one: one.where for one in study.subjects if one.what == what}
        found.append((what, names))
    return [
        Contest(title, names, verdicts)
        for title, names in found
        if len(names) > 1 and (verdicts := _verdicts(study, list(names)))
    ]


def _verdicts(study: Study, subjects: Sequence[Subject]) -> dict[Measure, list[Verdict]]:
    judged: dict[Measure, list[Verdict]] = {}
    for measure in (*KEY, *BY_METHOD):
        for spot in study.spots:
            there = [point for one in subjects if (point := study.at(spot, one))]
            verdict = _judge(spot, measure, there)
            if verdict:
                judged.setdefault(measure, []).append(verdict)
    return judged


def _judge(spot: Spot, measure: Measure, points: Sequence[Point]) -> Verdict | None:
    """Compare topologies at one load. Returns None if fewer than two of them have a figure."""
    figures = [(figure, point) for point in points if (figure := point.figure(measure))]
    if len(figures) < 2:
        return None
    figures.sort(key=lambda one: one[0].mean, reverse=measure.more_is_better)
    (best, leader), (second, follower) = figures[:2]
    overlap = best.overlaps(second)
    may_be_limited = measure.by_generator
    if any(point.disturbed for _, point in figures):
        return Verdict(spot, why=Why.DISTURBED)
    if overlap is None:
        return Verdict(spot, why=Why.ONCE)
    if overlap or not (best.mean and second.mean):
        return Verdict(spot, why=Why.OVERLAP)
    if may_be_limited and follower.near_limit:
        return Verdict(spot, why=Why.LIMIT)
    ratio = max(best.mean, second.mean) / min(best.mean, second.mean)
    return Verdict(spot, leader.subject, ratio, at_least=may_be_limited and leader.near_limit)


def winners(study: Study, compared: Sequence[Contest]) -> list[Statement]:
    """Return the sentences about leaders, and about the highest figures of each topology."""
    found = [*_machines(study), *map(in_short, compared)]
    for contest in compared:
        found += judged(contest, KEY)
    return [*found, *_peaks(study)]


def in_short(contest: Contest) -> Statement:
    """Return a sentence about topologies that lead in a measure at more than half of the loads."""
    won: dict[str, list[str]] = {}
    for measure in KEY:
        verdicts = contest.verdicts.get(measure, [])
        for subject, name in contest.names.items():
            if sum(one.leader == subject for one in verdicts) > len(verdicts) / 2:
                won.setdefault(name, []).append(measure.name)
    said = [f"{name} leads in {', '.join(measures)}" for name, measures in won.items()]
    lead = f"{contest.title}: in short" if contest.title else "in short"
    if not said:
        return Statement(lead, "no topology leads in any measure at more than half of the loads.")
    return Statement(lead, f"{'; '.join(said)} (at more than half of the loads).")


def trust(study: Study) -> list[Statement]:
    """Return the sentences about how far the figures can be trusted."""
    found = [_extent(study), *_seeds(study)]
    found += [_failures(study), *_refusals(study), _open_jobs(study), *_accounting_errors(study)]
    return [*found, *_disturbances(study), *_limits(study), *_lateness(study)]


def _machines(study: Study) -> list[Statement]:
    if study.same_machine:
        return []
    text = (
        "the folders are of different machines, or do not say of which: their figures are shown"
        " side by side and not compared."
    )
    return [Statement("not compared", text)]


def _seeds(study: Study) -> list[Statement]:
    """Return a sentence if topologies had different seeds at the same repetition of a load."""
    seeds: dict[tuple[Spot, int], set[int]] = {}
    for point in study.points:
        for run in point.runs:
            seeds.setdefault((point.spot, run.repetition), set()).add(run.seed)
    unlike = sum(len(one) > 1 for one in seeds.values())
    if not unlike:
        return []
    return [Statement("seeds", f"differ among the subjects at {unlike} repetitions of a load.")]


def judged(contest: Contest, measures: Sequence[Measure]) -> list[Statement]:
    """Return a sentence for each measure, which says who leads at which loads."""
    found = []
    for measure in measures:
        if verdicts := contest.verdicts.get(measure):
            lead = f"{measure.name} ({measure.better})"
            lead = f"{contest.title}: {lead}" if contest.title else lead
            found.append(Statement(lead, _sentence(contest, verdicts)))
    return found


def _extent(study: Study) -> Statement:
    repetitions = {len(point.used) for point in study.points}
    low, high = min(repetitions), max(repetitions)
    each = f"{low}" if low == high else f"{low} to {high}"
    text = (
        f"{_count(len(study.runs), 'run')}, {_count(len(study.subjects), 'subject')}"
        f" ({'; '.join(map(str, study.subjects))}), {_count(len(study.spots), 'load')},"
        f" {each} repetition{'' if high == 1 else 's'} behind each figure."
    )
    if high == 1:
        return Statement("extent", f"{text} One repetition has no interval: none is said to lead.")
    return Statement("extent", f"{text} Intervals are {CONFIDENCE:.0%}, by Student's t.")


def _sentence(contest: Contest, verdicts: Sequence[Verdict]) -> str:
    total = len(verdicts)
    said = []
    for subject, name in contest.names.items():
        won = [one for one in verdicts if one.leader == subject]
        if won:
            said.append(f"{name} leads {_where(won, total)}, {_by(won)}")
    said.sort(key=lambda text: "at all" not in text)
    for why in Why:
        count = sum(one.why is why for one in verdicts)
        if count:
            at = "" if count == total else f" at {count} of {total} loads"
            said.append(f"none can be said to lead{at}: {why.explained}")
    return "; ".join(said) + "."


def _where(won: Sequence[Verdict], total: int) -> str:
    if len(won) == total:
        return "at the only load" if total == 1 else f"at all {total} loads"
    if len(won) <= 2:
        return "at " + " and at ".join(str(one.spot) for one in won)
    return f"at {len(won)} of {total} loads"


def _by(won: Sequence[Verdict]) -> str:
    low, high = min(won, key=lambda one: one.ratio), max(won, key=lambda one: one.ratio)
    if times(low.ratio) == times(high.ratio):
        return f"by {high.shown}"
    return f"by {low.shown} to {high.shown}"


def _peaks(study: Study) -> list[Statement]:
    """Return sentences with the highest figures of each topology over all loads."""
    found = []
    for measure in (REQUESTS, JOBS):
        said = []
        for subject in study.subjects:
            points = [one for one in study.points if one.subject == subject and one.calm]
            figures = [(figure, one) for one in points if (figure := one.figure(measure))]
            if figures:
                best, point = max(figures, key=lambda one: one[0].mean)
                limit = " (near the generator's limit)" if point.near_limit else ""
                said.append(f"{subject}: {with_interval(best)} at {point.spot}{limit}")
        if said:
            found.append(Statement(f"most {measure.name}", "; ".join(said) + "."))
    return found


def _failures(study: Study) -> Statement:
    """Return a sentence about each topology's errors and requests without an answer."""
    said = []
    for subject in study.subjects:
        codes: dict[str, int] = {}
        begun = 0
        for point in study.points:
            if point.subject == subject:
                for one in point.counts().values():
                    begun += one.total
                    lost = {"unfinished": one.unfinished} if one.unfinished else {}
                    for code, count in {**one.errors, **lost}.items():
                        codes[code] = codes.get(code, 0) + count
        if codes:
            failed = sum(codes.values())
            listed = ", ".join(f"{code} {count:,}" for code, count in sorted(codes.items()))
            said.append(f"{subject}: {failed:,} of {begun:,} requests ({listed})")
    if not said:
        return Statement("failed requests", "none: no error, and every request was answered.")
    return Statement("failed requests", "; ".join(said) + ".")


def _refusals(study: Study) -> list[Statement]:
    """Return a sentence about submits that a full queue or a rate limit refused."""
    said = []
    for subject in study.subjects:
        counts = [point.counts().get(Method.SUBMIT) for point in study.points
                  if point.subject == subject]  # fmt: skip
        soft = sum(sum(one.soft.values()) for one in counts if one)
        total = sum(one.total for one in counts if one)
        if soft:
            said.append(f"{subject}: {soft:,} of {total:,}")
    text = "; ".join(said) + " submits had a soft outcome and made no job; they count as answered."
    return [Statement("refused submits", text)] if said else []


def _open_jobs(study: Study) -> Statement:
    said = []
    for subject in study.subjects:
        runs = [run for one in study.points if one.subject == subject for run in one.runs]
        left, submitted = sum(r.jobs.open for r in runs), sum(r.jobs.submitted for r in runs)
        if left:
            said.append(f"{subject}: {left:,} of {submitted:,} jobs")
    if not said:
        return Statement("open jobs", "none: every job that was counted has ended.")
    return Statement("open jobs", "; ".join(said) + " had not ended when the run gave up waiting.")


def _accounting_errors(study: Study) -> list[Statement]:
    wrong = [run for run in study.runs if run.jobs.submitted != run.jobs.ended + run.jobs.open]
    if not wrong:
        return []
    text = f"in {_count(len(wrong), 'run')} jobs submitted are not jobs ended + open."
    return [Statement("the accounting does not close", text)]


def _disturbances(study: Study) -> list[Statement]:
    runs = [run for run in study.runs if run.machine.disturbed]
    said = []
    left_out = sum(len(one.runs) - len(one.used) for one in study.points)
    if left_out:
        said.append(f"{_count(left_out, 'disturbed run')} left out of the figures")
    if len(runs) > left_out:
        said.append(f"{_count(len(runs) - left_out, 'run')} used though disturbed, marked †")
    return [Statement("disturbed runs", "; ".join(said) + ".")] if said else []


def _limits(study: Study) -> list[Statement]:
    limits = [one.environment.get("generator_limit", {}) for one in study.folders]
    known = [one[_LIMIT] for one in limits if isinstance(one, dict) and _LIMIT in one]
    alone = ""
    if known:
        alone = f" On a server that answers at once it makes {min(known):,.0f} requests a second."
    near = [point for point in study.points if point.near_limit]
    if not near:
        most = math.floor(100 * max(point.generator for point in study.points))
        text = f"used {most}% of a core at most: it did not limit these figures.{alone}"
        return [Statement("the generator", text)]
    text = (
        f"used {NEAR_LIMIT:.0%} of a core or more at {len(near)} of {len(study.points)} figures,"
        f" marked ‡: the system may do better than is shown there.{alone}"
    )
    return [Statement("the generator's limit", text)]


def _lateness(study: Study) -> list[Statement]:
    late = [point for point in study.points if point.late_ms > LATE]
    if not late:
        return []
    worst = max(late, key=lambda one: one.late_ms)
    text = (
        f"at {len(late)} of {len(study.points)} figures 1 % of the requests began more than"
        f" {LATE:.0f} ms late, at worst {number(worst.late_ms)} ms ({worst.subject}, {worst.spot});"
        " their times count from the intended start."
    )
    return [Statement("late requests", text)]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
