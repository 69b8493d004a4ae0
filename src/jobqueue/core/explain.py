"""Explain why a job does not run: each cause as a code, as facts, and in words.

The functions read no clock and no store. ``Job.hint`` is the text of one of these causes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobqueue.core.breaker import OpenBreaker, why_paused
from jobqueue.core.cron import utc_text
from jobqueue.core.job import SUSPECT_AFTER, Event, Job, Worker, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.limits import SECOND
from jobqueue.core.queue import KeyState, LimitState, Queue, reached
from jobqueue.core.store import ALL_QUEUES

MOST_NAMED = 10
"""The most jobs or workers in one list of facts."""
_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
_LATE = 5.0  # seconds; what should happen at once may take a moment


class Cause(enum.StrEnum):
    """The causes for which a job does not run, and the states of jobs that need none."""

    DONE = "DONE"
    DEAD_LETTERED = "DEAD_LETTERED"
    RUNNING = "RUNNING"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    HANDED_OVER = "HANDED_OVER"  # a worker has the job and has not reported the start
    RUNS_ALONE = "RUNS_ALONE"  # the job is suspected of killing its workers
    WORKER_SILENT = "WORKER_SILENT"  # the worker that holds the job sends no heartbeats
    BACKOFF = "BACKOFF"
    RETRY_OVERDUE = "RETRY_OVERDUE"
    NOT_DUE = "NOT_DUE"
    TTL_OVER = "TTL_OVER"
    QUEUE_PAUSED = "QUEUE_PAUSED"
    NO_WORKER_FOR_QUEUE = "NO_WORKER_FOR_QUEUE"
    NO_WORKER_FOR_TYPE = "NO_WORKER_FOR_TYPE"
    WORKERS_DRAINING = "WORKERS_DRAINING"
    WORKERS_STOPPING = "WORKERS_STOPPING"
    WORKERS_OFFLINE = "WORKERS_OFFLINE"
    POOL_STEPS_ASIDE = "POOL_STEPS_ASIDE"  # the server's own workers leave the queue to others
    BREAKER_OPEN = "BREAKER_OPEN"
    MAX_RUNNING = "MAX_RUNNING"
    RATE = "RATE"
    KEY_MAX_RUNNING = "KEY_MAX_RUNNING"
    KEY_RATE = "KEY_RATE"
    SLOTS_BUSY = "SLOTS_BUSY"
    SLOTS_OVERRUN = "SLOTS_OVERRUN"  # functions of attempts that are over still run
    SUSPECT_FIRST = "SUSPECT_FIRST"  # the worker runs a suspected job alone
    SLOTS_WITHDRAWN = "SLOTS_WITHDRAWN"
    NO_LEADER = "NO_LEADER"
    STARTING = "STARTING"  # nothing is in the way


@dataclass(frozen=True, slots=True)
class Explained:
    """One cause, for people and for programs.

    The facts are texts, numbers, lists and mappings. A fact whose name ends in ``_at`` is a time in
    seconds since the epoch.
    """

    code: str  # of ``Cause``; servers of later versions may have further ones
    text: str  # a sentence without capital and full stop
    advice: str = ""  # what to do; empty: nothing
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Explanation:
    """Says why a job does not run. The causes hold at the same time, the nearest one first."""

    job_id: str
    state: State
    at: float  # when the causes were true
    causes: list[Explained] = field(default_factory=list)


def span(seconds: float) -> str:
    """Return a duration for people, in its two largest units."""
    left = round(max(0.0, seconds))
    for size, unit, rest, small in _UNITS:
        if left >= size:
            more = left % size // rest
            return f"{left // size} {unit}" + (f" {more} {small}" if more else "")
    return f"{left} s"


def takes(info: WorkerInfo, queue: str, type: str) -> bool:
    """Return True if a worker that registered with ``info`` knows such jobs."""
    serves = queue in info.queues or ALL_QUEUES in info.queues
    return serves and (info.types is None or type in info.types)


def free_slots(worker: Worker) -> int:
    """Return the number of slots of a worker that hold no job and run no function."""
    blocked = worker.overrun if worker.partition is None else worker.withheld
    return max(0, worker.info.concurrency - worker.running - blocked)


def deaths_of(events: Sequence[Event]) -> int:
    """Return the number of workers that died with the job, by its newest events."""
    deaths = 0
    for event in events:
        if event.reason is Reason.MANUAL_RETRY:
            deaths = 0
        elif event.to_state is State.FAILED and event.reason is Reason.WORKER_LOST:
            deaths += 1
    return deaths


# -- jobs that do not wait for a worker --------------------------------------------------------


def ended(job: Job) -> Explained:
    facts = {"reason": job.reason.value, "ended_at": job.completed_at}
    if job.state is State.DONE:
        return Explained(Cause.DONE, "it has ended with a result", facts=facts)
    return Explained(
        Cause.DEAD_LETTERED,
        f"it was given up: {_REASONS.get(job.reason, job.reason.value)}",
        f"if its cause is removed, jq-ctl job retry {job.id} runs it again",
        {**facts, "error": job.error},
    )


_REASONS = {
    Reason.RETRIES_EXHAUSTED: "its attempts failed, and there is no retry left",
    Reason.NOT_RETRYABLE: "its attempt failed with an error that is not retried",
    Reason.POISON: "several workers died while they ran it",
    Reason.CANCELLED: "it was cancelled",
    Reason.TTL_EXPIRED: "it did not start within its TTL",
    Reason.QUEUE_DELETED: "its queue was deleted",
}


def held(
    job: Job, worker: Worker | None, deaths: int, now: float, *, silent_after: float, timeout: float
) -> list[Explained]:
    """Return what keeps a job that a worker holds. ``worker`` None: the store knows no such worker.

    A worker is called silent ``silent_after`` seconds after its last heartbeat. After ``timeout``
    seconds the leader takes its jobs from it.
    """
    name = job.worker_id or ""
    found: list[Explained] = []
    silence = None if worker is None else now - worker.last_seen
    if silence is None or silence > silent_after or worker_is(worker, WorkerStatus.OFFLINE):
        said = "is not registered" if silence is None else f"is silent for {span(silence)}"
        found.append(
            Explained(
                Cause.WORKER_SILENT,
                f"worker {name!r} holds it and {said}; after {span(timeout)} of silence a worker"
                " loses its jobs",
                "look for the worker's process, its log and its connection",
                {
                    "worker_id": name,
                    "last_heartbeat_at": None if worker is None else worker.last_seen,
                    "timeout": timeout,
                },
            )
        )
    facts: dict[str, Any] = {"worker_id": name, "attempt": job.attempt}
    if job.cancel_requested:
        found.append(
            Explained(
                Cause.CANCEL_REQUESTED,
                f"it runs, and worker {name!r} was asked to stop it",
                "a handler that does not look at its context's `cancelled` runs to its end",
                facts,
            )
        )
    elif job.state is State.RUNNING:
        since = job.started_at if job.started_at is not None else job.updated_at
        found.append(
            Explained(
                Cause.RUNNING,
                f"it runs on worker {name!r} for {span(now - since)}",
                facts={**facts, "started_at": since},
            )
        )
    elif deaths >= SUSPECT_AFTER:
        beside = max(0, worker.running - 1) if worker is not None else 0
        found.append(
            Explained(
                Cause.RUNS_ALONE,
                f"{deaths} workers died while they had it, so worker {name!r} runs it alone, after"
                f" its other jobs ({beside}) have ended",
                "look into what the job does to its process (memory, native code)",
                {**facts, "deaths": deaths, "other_jobs": beside},
            )
        )
    else:
        found.append(
            Explained(
                Cause.HANDED_OVER,
                f"worker {name!r} has it for {span(now - job.updated_at)} and has not reported its"
                " start",
                facts={**facts, "assigned_at": job.updated_at},
            )
        )
    return found


def worker_is(worker: Worker | None, status: WorkerStatus) -> bool:
    return worker is not None and worker.status is status


def waits_for_retry(job: Job, now: float) -> Explained:
    """Return why a FAILED job waits."""
    at = job.next_retry_at
    facts: dict[str, Any] = {
        "retry": job.retry_count + 1,
        "max_retries": job.max_retries,
        "next_retry_at": at,
        "error": job.error,
    }
    which = f"retry {job.retry_count + 1} of {job.max_retries}"
    if at is not None and at < now - _LATE:
        return Explained(
            Cause.RETRY_OVERDUE,
            f"its {which} was due {span(now - at)} ago and was not made",
            "see whether a server runs and reaches its store: jq-ctl status",
            facts,
        )
    when = "soon" if at is None else f"in {span(at - now)}"
    return Explained(
        Cause.BACKOFF,
        f"its last attempt failed ({job.reason.value}), and {which} comes {when}",
        f"jq-ctl job retry {job.id} does it now",
        facts,
    )


# -- jobs that wait for a worker ---------------------------------------------------------------


def not_due(job: Job, now: float) -> Explained | None:
    """Return the cause if the job's start time lies ahead."""
    if job.run_at is None or job.run_at <= now:
        return None
    return Explained(
        Cause.NOT_DUE,
        f"it may not start before {utc_text(job.run_at)}, in {span(job.run_at - now)}",
        facts={"run_at": job.run_at},
    )


def ttl_over(job: Job, now: float) -> Explained | None:
    """Return the cause if the job's TTL has ended: no worker gets it any more."""
    if job.expires_at is None or job.expires_at > now:
        return None
    return Explained(
        Cause.TTL_OVER,
        f"its TTL has ended {span(now - job.expires_at)} ago; it becomes a dead letter",
        facts={"expires_at": job.expires_at, "ttl": job.ttl},
    )


def paused(queue: str) -> Explained:
    return Explained(
        Cause.QUEUE_PAUSED,
        f"queue {queue!r} is paused",
        f"jq-ctl queue resume {queue}",
        {"queue": queue},
    )


_AWAY = {
    WorkerStatus.DRAINING: (
        Cause.WORKERS_DRAINING,
        "jq-ctl worker undrain {} lets it take jobs again",
    ),
    WorkerStatus.STOPPING: (Cause.WORKERS_STOPPING, "start another worker: {} exits"),
    WorkerStatus.OFFLINE: (Cause.WORKERS_OFFLINE, "start worker {} again, or look at its log"),
}


def nobody_takes(
    queue: str, type: str, *, others: bool, registered: Sequence[Worker] = ()
) -> Explained:
    """Return the cause if no connected worker takes jobs of this type from this queue.

    ``others`` is True if some worker takes jobs of other types from the queue. Of the workers in
    ``registered``, those that know such jobs are named: they are away, or leave them to others.
    """
    kind = f"type {type!r}" if type else "jobs without a type"
    text = f"no connected worker takes {kind if others else 'jobs'} from queue {queue!r}"
    facts: dict[str, Any] = {"queue": queue, "type": type}
    known = [one for one in registered if takes(one.info, queue, type)]
    known.sort(key=lambda one: (_RANK.index(one.status), -one.last_seen))
    if not known:
        cause = Cause.NO_WORKER_FOR_TYPE if others else Cause.NO_WORKER_FOR_QUEUE
        start = (
            f"start one whose app has the task: jq-worker --app MODULE:ATTRIBUTE --queues {queue}"
        )
        return Explained(cause, text, start, facts)
    first = known[0]
    facts["workers"] = [
        {
            "worker_id": one.info.id,
            "status": one.status.value,
            "last_heartbeat_at": one.last_seen,
        }
        for one in known[:MOST_NAMED]
    ]
    facts["workers_in_all"] = len(known)
    if first.status is WorkerStatus.ONLINE:
        cause = Cause.POOL_STEPS_ASIDE
        advice = "add the task to the app of the queue's workers, or submit it to another queue"
        text += (
            f": worker {first.info.id!r} of the server knows it, but leaves the queue to the"
            " workers that are connected"
        )
    else:
        cause, advice = _AWAY[first.status]
        advice = advice.format(first.info.id)
        text += f": worker {first.info.id!r} would, and is {first.status.value}"
        if len(known) > 1:
            text += f"; others that would ({len(known) - 1}) are away as well"
    return Explained(cause, text, advice, facts)


_RANK = (
    WorkerStatus.ONLINE,
    WorkerStatus.DRAINING,
    WorkerStatus.STOPPING,
    WorkerStatus.OFFLINE,
)


def breaker_open(one: OpenBreaker, now: float) -> Explained:
    return Explained(
        Cause.BREAKER_OPEN,
        why_paused(one, now),
        "see why the task fails: jq-ctl job list --type TYPE --status FAILED,DEAD_LETTERED",
        {
            "type": one.type,
            "failures": one.failures,
            "next_trial_at": one.until,
            "tries_one": bool(one.trial) or one.until <= now,
        },
    )


def limited(queue: Queue, state: LimitState | KeyState) -> list[Explained]:
    """Return the limits of a queue, or of one of its keys, that allow no start now."""
    facts: dict[str, Any] = {"queue": queue.name}
    prefix, of, option = "", f"queue {queue.name!r}", "--"
    most, starts, period = queue.max_running, queue.rate, queue.rate_period
    codes = Cause.MAX_RUNNING, Cause.RATE
    if isinstance(state, KeyState):
        facts["key"] = state.key
        prefix, of, option = "key_", f"key {state.key!r} in {of}", "--key-"
        most, starts, period = queue.key_max_running, queue.key_rate, queue.key_rate_period
        codes = Cause.KEY_MAX_RUNNING, Cause.KEY_RATE
    change = f"jq-ctl queue update {queue.name} {option}"
    found = reached(queue, state)
    causes: list[Explained] = []
    if f"{prefix}max_running" in found:
        causes.append(
            Explained(
                codes[0],
                f"waits until a job of {of} ends: {state.held} run, and {prefix}max_running is"
                f" {most}",
                f"{change}max-running NUMBER changes the limit",
                facts | {f"{prefix}max_running": most, "running": state.held},
            )
        )
    opens_in = found.get(f"{prefix}rate")
    if opens_in is not None:
        period = period or SECOND
        causes.append(
            Explained(
                codes[1],
                f"waits for the rate limit of {of} ({starts} starts in {period:g} s): the next"
                f" start is possible in {opens_in:.3g} s",
                f"{change}rate NUMBER changes the limit",
                facts
                | {f"{prefix}rate": starts, f"{prefix}rate_period": period, "opens_in": opens_in},
            )
        )
    return causes


def holders(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Return the jobs that workers hold, the longest held first, as facts."""
    since = {job.id: job.started_at or job.updated_at for job in jobs}
    first = sorted(jobs, key=lambda job: since[job.id])[:MOST_NAMED]
    return [
        {
            "job_id": job.id,
            "type": job.type,
            "queue": job.queue,
            "worker_id": job.worker_id,
            "since_at": since[job.id],
        }
        for job in first
    ]


def no_slot(able: Sequence[Worker], jobs: Sequence[Job], now: float) -> Explained | None:
    """Return the cause if the workers that take a job have no free slot.

    ``able`` are these workers, and ``jobs`` the jobs that they hold, as far as they were read.
    """
    if any(map(free_slots, able)):
        return None
    slots = sum(one.info.concurrency for one in able)
    running = sum(one.running for one in able)
    held = holders(jobs)
    facts: dict[str, Any] = {
        "slots": slots,
        "running": running,
        "overrun": sum(one.overrun for one in able),
        "workers": [one.info.id for one in able[:MOST_NAMED]],
        "workers_in_all": len(able),
        "held_by": held,
    }
    where = (
        f"worker {able[0].info.id!r}" if len(able) == 1 else f"the {len(able)} workers that take it"
    )
    if not running and facts["overrun"]:
        return Explained(
            Cause.SLOTS_OVERRUN,
            f"in all {slots} slots of {where}, functions still run whose attempts are over",
            "restart the worker; give the task executor='process', whose functions can be killed",
            facts,
        )
    text = f"all {slots} slots of {where} are busy"
    if held:
        text += f"; job {held[0]['job_id']} has one for {span(now - held[0]['since_at'])}"
    return Explained(
        Cause.SLOTS_BUSY,
        text,
        "wait, start another worker, or give the workers more --concurrency",
        facts,
    )


def suspect_first(suspect: Job, deaths: int) -> Explained:
    """Return the cause if the job ``suspect`` keeps a worker's slots from other jobs."""
    name = suspect.worker_id or ""
    return Explained(
        Cause.SUSPECT_FIRST,
        f"worker {name!r} takes no jobs while it runs job {suspect.id} alone: {deaths} workers died"
        " while they had that job",
        f"wait, or cancel the other job: jq-ctl job cancel {suspect.id}",
        {"worker_id": name, "suspect": suspect.id, "deaths": deaths},
    )


def withdrawn(able: Sequence[Worker]) -> Explained:
    names = [one.info.id for one in able[:MOST_NAMED]]
    return Explained(
        Cause.SLOTS_WITHDRAWN,
        f"worker {names[0]!r} has free slots, but asks for no jobs at the moment",
        "it starts, stops, or waits to run a suspected job alone: see its log",
        {"workers": names, "workers_in_all": len(able)},
    )


def no_leader(what: str) -> Explained:
    return Explained(
        Cause.NO_LEADER,
        f"no server leads, and only the leader {what}",
        "see whether a server runs and reaches its store: jq-ctl status",
    )


def runs_alone(deaths: int) -> Explained:
    """Return what delays a waiting job that is suspected of killing its workers."""
    return Explained(
        Cause.RUNS_ALONE,
        f"{deaths} workers died while they had it, so the next worker runs it alone (unless it"
        " has a process of its own), after its other jobs have ended",
        "look into what the job does to its process (memory, native code)",
        {"deaths": deaths},
    )


def starting(job: Job, able: Sequence[Worker], now: float) -> Explained:
    """Return the answer for a job with nothing in its way."""
    free = [one.info.id for one in able if free_slots(one)]
    since = max(job.updated_at, job.run_at or 0.0)
    facts: dict[str, Any] = {"workers": free[:MOST_NAMED], "claimable_since_at": since}
    text = f"worker {free[0]!r} has a free slot, so it starts in a moment"
    if now - since <= _LATE:
        return Explained(Cause.STARTING, text, facts=facts)
    return Explained(
        Cause.STARTING,
        f"{text}; it has waited for {span(now - since)}, perhaps behind more urgent jobs",
        "ask again; if it stays, look for “cannot claim jobs” in the log of jq-server",
        facts,
    )
