"""Judges a run by what it left behind.

``Evidence`` is what clients were told, what an outside ledger saw being executed, and every event
of every job in the order of commit. ``judge`` returns the findings: an empty list means that the
run kept every promise. Each rule is a small generator below; ``RULES`` names them.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jobqueue.core.job import Event, Job
from jobqueue.core.lifecycle import HELD, TERMINAL, TRANSITIONS, Reason, State
from jobqueue.core.limits import Rate
from jobqueue.core.retry import RetryPolicy
from tests.history.order import overtaken

CLOCK_SLACK = 0.001  # seconds that a stored time may be rounded by


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the outside ledger: a handler began this attempt."""

    job_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was broken."""

    rule: str
    job_id: str
    text: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.job_id or 'run'}: {self.text}"


@dataclass(kw_only=True)
class Evidence:
    """What a run left behind. Leave empty what was not watched."""

    events: Sequence[Event]  # of all jobs, in the order of commit
    accepted: Collection[str] = ()  # ids that a submit answered OK for
    refused: Collection[str] = ()  # ids whose submit was answered with an error
    runs: Sequence[Run] | None = None  # the outside ledger
    confirmed: Sequence[Run] = ()  # success reports that were answered "accepted"
    told_done: Collection[str] = ()  # ids that a client was told are DONE
    jobs: Mapping[str, Job] = field(default_factory=dict)  # the records at the end
    removed: Collection[str] = ()  # ids deleted or pruned on purpose
    concurrency: Mapping[str, int] = field(default_factory=dict)  # worker id -> slots
    running: Mapping[str, int] = field(default_factory=dict)  # queue -> its max_running
    key_running: Mapping[str, int] = field(default_factory=dict)  # the same of each key
    rates: Mapping[str, Rate] = field(default_factory=dict)  # queue -> the limit of its starts
    key_rates: Mapping[str, Rate] = field(default_factory=dict)
    crashed: bool = False  # the database was: it may have forgotten the last assignments
    settled: bool = False  # the run was left alone until nothing could move any more
    dead_letters_allowed: bool = True
    backoff: RetryPolicy | None = None  # that every failure had to wait out
    overtakes_allowed: int | None = None  # None: the order of dispatch is not judged

    @cached_property
    def histories(self) -> dict[str, list[Event]]:
        """The events by job, in the order of commit."""
        by_job: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            by_job[event.job_id].append(event)
        return dict(by_job)


def judge(evidence: Evidence) -> list[Finding]:
    """Apply every rule."""
    return [
        Finding(name, job_id, text)
        for name, rule in RULES.items()
        for job_id, text in rule(evidence)
    ]


def assert_kept(evidence: Evidence) -> None:
    """Fail with the findings, if there are any."""
    findings = judge(evidence)
    shown = "\n".join(str(finding) for finding in findings[:20])
    assert not findings, f"{len(findings)} broken promises:\n{shown}"


Found = Iterator[tuple[str, str]]


def nothing_is_lost(evidence: Evidence) -> Found:
    """What was accepted exists, and finishes if the run was left to settle."""
    for job_id in evidence.accepted:
        if job_id in evidence.removed:
            continue
        history = evidence.histories.get(job_id)
        if not history:
            yield job_id, "accepted, but it has no event"
        elif evidence.settled and history[-1].to_state not in TERMINAL:
            yield job_id, f"left behind in {history[-1].to_state.name}"
        if evidence.jobs and job_id not in evidence.jobs:
            yield job_id, "accepted, but it has no record"


def no_false_ok(evidence: Evidence) -> Found:
    """What clients and workers were told is what was written."""
    done = {event.job_id for event in evidence.events if event.to_state is State.DONE}
    finished = {
        (event.job_id, event.attempt) for event in evidence.events if event.to_state is State.DONE
    }
    for job_id in evidence.told_done:
        if job_id not in done and job_id not in evidence.removed:
            yield job_id, "a client was told DONE, the history does not say so"
    for run in evidence.confirmed:
        if (run.job_id, run.attempt) not in finished and run.job_id not in evidence.removed:
            yield run.job_id, f"attempt {run.attempt} was confirmed, but is not in the history"
    for job_id in evidence.refused:
        if job_id in evidence.histories:
            yield job_id, "refused, but it was written"


def one_result(evidence: Evidence) -> Found:
    """At most one attempt's result is accepted."""
    for job_id, history in evidence.histories.items():
        results = sum(event.to_state is State.DONE for event in history)
        if results > 1:
            yield job_id, f"{results} results were accepted"
    confirmed = Counter(run.job_id for run in evidence.confirmed)
    for job_id, count in confirmed.items():
        if count > 1:
            yield job_id, f"{count} reports of success were confirmed"


def versions_without_gaps(evidence: Evidence) -> Found:
    """A job's versions are 1..n, in the order of commit."""
    for job_id, history in evidence.histories.items():
        versions = [event.version for event in history]
        if versions != list(range(1, len(versions) + 1)):
            yield job_id, f"its versions are {versions}"


def allowed_transitions(evidence: Evidence) -> Found:
    """Each event leaves the state that the one before it entered, by an edge of the table."""
    for job_id, history in evidence.histories.items():
        here: State | None = None
        for event in history:
            if event.from_state != here:
                yield job_id, f"version {event.version} leaves {event.from_state!r}, not {here!r}"
            if event.reason not in TRANSITIONS.get((event.from_state, event.to_state), ()):
                yield (
                    job_id,
                    f"version {event.version}: {event.from_state!r} -> {event.to_state!r} "
                    f"({event.reason}) is not allowed",
                )
            here = event.to_state


def time_does_not_run_backwards(evidence: Evidence) -> Found:
    """A job's events are in the order of their times."""
    for job_id, history in evidence.histories.items():
        for earlier, later in itertools.pairwise(history):
            if later.at < earlier.at - CLOCK_SLACK:
                yield job_id, f"version {later.version} is older than {earlier.version}"


def leases_are_disjoint(evidence: Evidence) -> Found:
    """Attempts are numbered one by one, and what ends an attempt was said by its holder."""
    for job_id, history in evidence.histories.items():
        attempt = 0
        holder: str | None = None
        for event in history:
            if event.to_state is State.ASSIGNED:
                if event.attempt != attempt + 1:
                    yield job_id, f"attempt {event.attempt} follows attempt {attempt}"
                attempt = event.attempt
                holder = event.worker_id
                if not holder:
                    yield job_id, f"attempt {attempt} was assigned to nobody"
            elif event.attempt != attempt:
                yield job_id, f"version {event.version} speaks of attempt {event.attempt}"
            elif event.from_state in HELD and event.worker_id not in (holder, None):
                yield job_id, f"{event.worker_id} reported on an attempt held by {holder}"


def no_worker_holds_too_much(evidence: Evidence) -> Found:
    """A worker never holds more jobs than it has slots."""
    held: dict[str, set[str]] = defaultdict(set)
    holder: dict[str, str] = {}
    for event in evidence.events:
        if event.to_state is State.ASSIGNED and event.worker_id:
            worker = event.worker_id
            holder[event.job_id] = worker
            held[worker].add(event.job_id)
            if len(held[worker]) > evidence.concurrency.get(worker, len(held[worker])):
                yield event.job_id, f"{worker} was given {len(held[worker])} jobs at once"
        elif event.to_state not in HELD and event.job_id in holder:
            held[holder.pop(event.job_id)].discard(event.job_id)


Place = tuple[str, str | None]
"""A queue, and a concurrency key; or None for the whole queue."""


def _places(evidence: Evidence, job_id: str, queue: str) -> list[Place]:
    """Where a job counts against limits."""
    job = evidence.jobs.get(job_id)
    key = None if job is None else job.spec.concurrency_key
    return [(queue, None)] if key is None else [(queue, None), (queue, key)]


def _named(place: Place) -> str:
    queue, key = place
    return queue if key is None else f"{queue}, key {key},"


def no_limit_is_exceeded(evidence: Evidence) -> Found:
    """No queue or key has more held jobs than its limit, by the times of the events.

    The order of commits is not used, because jobs of several transactions may be read in any order.
    A store counts first and then reads the time, so jobs that overlap by their times did overlap.
    """
    if not (evidence.running or evidence.key_running):
        return
    changes: dict[Place, list[tuple[float, int, str]]] = defaultdict(list)
    for job_id, history in evidence.histories.items():
        since: float | None = None
        for event in history:
            if event.to_state is State.ASSIGNED:
                since = event.at
            elif event.to_state not in HELD and since is not None:
                if event.at > since:
                    for place in _places(evidence, job_id, event.queue):
                        changes[place] += [(since, 1, job_id), (event.at, -1, job_id)]
                since = None
        if since is not None:
            for place in _places(evidence, job_id, history[-1].queue):
                changes[place].append((since, 1, job_id))
    for place, found in changes.items():
        limits = evidence.running if place[1] is None else evidence.key_running
        held, most = 0, limits.get(place[0], len(found))
        for at, change, job_id in sorted(found):  # at one time, ends come first
            held += change
            if change > 0 and held > most:
                yield job_id, f"{held} jobs of {_named(place)} were held at {at:.6f}"


def starts_keep_their_rate(evidence: Evidence) -> Found:
    """No span of time has more starts of a queue or key than its rate limit and the burst allow."""
    if not (evidence.rates or evidence.key_rates):
        return
    starts: dict[Place, list[tuple[float, str]]] = defaultdict(list)
    for event in evidence.events:
        if event.to_state is State.ASSIGNED:
            for place in _places(evidence, event.job_id, event.queue):
                starts[place].append((event.at, event.job_id))
    for place, found in starts.items():
        rate = (evidence.rates if place[1] is None else evidence.key_rates).get(place[0])
        # The tokens that are missing in a bucket that was full before the first start.
        missing, last = 0.0, float("-inf")
        for at, job_id in sorted(found) if rate is not None else ():
            assert rate is not None
            missing = max(0.0, missing - (at - last) / rate.interval) + 1
            last = at
            if missing > rate.burst + CLOCK_SLACK / rate.interval + CLOCK_SLACK:
                yield job_id, f"start {missing:.2f} at once of {_named(place)} at {at:.6f}"


def records_match(evidence: Evidence) -> Found:
    """The record is where the history ends."""
    for job_id, job in evidence.jobs.items():
        history = evidence.histories.get(job_id)
        if not history:
            yield job_id, "a record without a history"
            continue
        last = history[-1]
        written = (job.state, job.version, job.attempt, job.reason)
        expected = (last.to_state, last.version, last.attempt, last.reason)
        if written != expected:
            yield job_id, f"the record says {written}, the history {expected}"
        if abs(job.updated_at - last.at) > CLOCK_SLACK:
            yield job_id, f"updated at {job.updated_at}, but its last event is of {last.at}"


def what_is_done_was_run(evidence: Evidence) -> Found:
    """The outside ledger has a line for each accepted result, and none that was never assigned."""
    if evidence.runs is None:
        return
    ledger = Counter(evidence.runs)
    assigned = {
        (event.job_id, event.attempt)
        for event in evidence.events
        if event.to_state is State.ASSIGNED
    }
    for event in evidence.events:
        if event.to_state is State.DONE and not ledger[Run(event.job_id, event.attempt)]:
            yield event.job_id, f"attempt {event.attempt} is DONE, but nobody saw it run"
    for run, count in ledger.items():
        if run.job_id in evidence.removed:
            continue
        if evidence.crashed:
            continue  # such an attempt is handed out again, under its number and another lease
        if (run.job_id, run.attempt) not in assigned:
            yield run.job_id, f"attempt {run.attempt} ran without having been assigned"
        if count > 1:
            yield run.job_id, f"attempt {run.attempt} ran {count} times"


def nothing_is_given_up(evidence: Evidence) -> Found:
    """With ample retries nothing ends as a dead letter, where the run asks for that."""
    if evidence.dead_letters_allowed:
        return
    for event in evidence.events:
        if event.to_state is State.DEAD_LETTERED:
            yield event.job_id, f"dead-lettered ({event.reason}): {event.detail}"


def retries_are_counted(evidence: Evidence) -> Found:
    """No more retries than allowed, and none given up too early."""
    for job_id, job in evidence.jobs.items():
        retries = 0
        for event in evidence.histories.get(job_id, ()):
            if event.reason is Reason.MANUAL_RETRY:
                retries = 0
            elif event.reason is Reason.RETRY_DUE:
                retries += 1
                if retries > job.max_retries:
                    yield job_id, f"retry {retries} of {job.max_retries}"
            elif event.reason is Reason.RETRIES_EXHAUSTED and retries != job.max_retries:
                yield job_id, f"given up after {retries} of {job.max_retries} retries"


def backoff_is_waited_out(evidence: Evidence) -> Found:
    """A retry is not re-enqueued before the policy allows it."""
    if evidence.backoff is None:
        return
    for job_id, history in evidence.histories.items():
        retries = 0
        for earlier, later in itertools.pairwise(history):
            if later.reason is Reason.MANUAL_RETRY:
                retries = 0
            if later.reason is not Reason.RETRY_DUE:
                continue
            waited = later.at - earlier.at
            least = evidence.backoff.delay(retries, lambda: 0.0)
            retries += 1
            if waited < least - CLOCK_SLACK:
                yield job_id, f"retry {retries} came after {waited:.3f} s instead of {least:.3f} s"


def ttl_is_honoured(evidence: Evidence) -> Found:
    """A job is first handed out within its TTL, or expires after it, and never once it started."""
    for job_id, job in evidence.jobs.items():
        history = evidence.histories.get(job_id, [])
        if not history:
            continue
        expires = None if job.ttl is None else history[0].at + job.ttl
        started = False
        for event in history:
            if event.reason is Reason.TTL_EXPIRED:
                if expires is None or started:
                    yield job_id, f"version {event.version} expired a job whose TTL had ended"
                elif event.at < expires - CLOCK_SLACK:
                    yield job_id, f"expired {expires - event.at:.3f} s too early"
            elif event.to_state is State.ASSIGNED and expires is not None and not started:
                if event.at > expires + CLOCK_SLACK:
                    yield job_id, f"handed out {event.at - expires:.3f} s after its TTL"
            elif event.reason is Reason.MANUAL_RETRY:
                expires = None
            started = started or event.to_state is State.RUNNING


def dispatch_is_in_order(evidence: Evidence) -> Found:
    """Priority first, then first in first out, with no more overtaking than the run allows."""
    if evidence.overtakes_allowed is None:
        return
    for job_id, count in overtaken(evidence.events, evidence.jobs).items():
        if count > evidence.overtakes_allowed:
            yield job_id, f"overtaken {count} times (allowed: {evidence.overtakes_allowed})"


RULES: Mapping[str, Callable[[Evidence], Iterable[tuple[str, str]]]] = {
    rule.__name__: rule
    for rule in (
        nothing_is_lost,
        no_false_ok,
        one_result,
        versions_without_gaps,
        allowed_transitions,
        time_does_not_run_backwards,
        leases_are_disjoint,
        no_worker_holds_too_much,
        no_limit_is_exceeded,
        starts_keep_their_rate,
        records_match,
        what_is_done_was_run,
        nothing_is_given_up,
        retries_are_counted,
        backoff_is_waited_out,
        ttl_is_honoured,
        dispatch_is_in_order,
    )
}
