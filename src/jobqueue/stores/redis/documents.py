"""Hashes of Redis to domain objects.

The documents are for people with ``redis-cli``, too: fields have names, states and reasons are
words. What may be missing is missing. Times that name a moment of the record (``created_at``,
``updated_at``, ``last_heartbeat``, ``registered_at``) are RFC 3339; those that scripts calculate
with are seconds since the epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from jobqueue.core.errors import Internal
from jobqueue.core.job import (
    NO_LABELS,
    Assignment,
    Event,
    Held,
    Job,
    JobSpec,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.key_owner import read_key
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.stores.queue_rows import queue_of
from jobqueue.stores.rows import read_more

Fields = Mapping[bytes, bytes]
Value = bytes | None

STATES: dict[bytes, State] = {state.name.encode(): state for state in State}
REASONS: dict[bytes, Reason] = {reason.value.encode(): reason for reason in Reason}


def fields(flat: Sequence[bytes]) -> Fields:
    """A hash, from fields and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


_TO_THE_SECOND = len("2026-01-01T00:00:00")
_TO_THE_MICROSECOND = len("2026-01-01T00:00:00.000000Z")


def moment(text: bytes) -> float:
    """A time of the record, in seconds since the epoch."""
    said = text.decode()
    if len(said) <= _TO_THE_MICROSECOND:
        return datetime.fromisoformat(said).timestamp()
    whole = datetime.fromisoformat(f"{said[:_TO_THE_SECOND]}Z").timestamp()
    return float(f"{whole:.0f}{said[_TO_THE_SECOND:-1]}")


def iso(at: float) -> str:
    """A time of the record: to the microsecond, as scripts write it, or as precise as it is."""
    said = f"{at:.6f}"
    if float(said) != at:
        said = f"{Decimal(repr(at)):f}"
    seconds, _, fraction = said.partition(".")
    whole = datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{fraction}Z"


def place_of(entry: bytes) -> tuple[int, int]:
    """The two numbers of an entry's id in a stream."""
    first, _, second = entry.partition(b"-")
    return int(first), int(second)


def number(value: Value) -> float | None:
    """A number that may be missing."""
    return None if value is None else float(value)


def text(value: Value) -> str | None:
    """A text that may be missing."""
    return None if value is None else value.decode()


SPEC = (
    b"type", b"payload", b"priority", b"max_retries", b"ttl", b"timeout", b"labels", b"more",
    b"idempotency_key",
)  # fmt: skip
"""The fields of what was asked for, in the order of ``spec``."""


def spec(
    queue: bytes,
    run_at: float | None,
    type: Value,
    payload: Value,
    priority: Value,
    max_retries: Value,
    ttl: Value = None,
    timeout: Value = None,
    labels: Value = None,
    more: Value = None,
    key: Value = None,
) -> JobSpec:
    """What was asked for."""
    known, owner = read_key(text(key))
    return JobSpec(
        payload=payload or b"",
        queue=queue.decode(),
        type=text(type) or "",
        priority=int(priority or 0),
        max_retries=int(max_retries or 0),
        ttl=number(ttl),
        run_at=run_at,
        timeout=number(timeout),
        key=known,
        key_owner=owner,
        labels=json.loads(labels) if labels else NO_LABELS,
        **read_more(more),
    )


def job(found: Fields) -> Job:
    """A job from its document."""
    get = found.get
    return Job(
        id=found[b"job_id"].decode(),
        seq=int(found[b"seq"]),
        spec=spec(found[b"queue"], number(get(b"run_at")), *map(get, SPEC)),
        state=STATES[found[b"status"]],
        version=int(found[b"version"]),
        attempt=int(found[b"attempt"]),
        retry_count=int(found[b"retry_count"]),
        created_at=moment(found[b"created_at"]),
        updated_at=moment(found[b"updated_at"]),
        expires_at=number(get(b"expires_at")),
        worker_id=text(get(b"assigned_worker")),
        cancel_requested=b"cancel_requested" in found,
        started_at=number(get(b"started_at")),
        completed_at=number(get(b"completed_at")),
        next_retry_at=number(get(b"next_retry_at")),
        result=get(b"result"),
        error=get(b"error", b"").decode(),
        reason=REASONS[found[b"reason"]],
        progress=progress(found),
    )


def progress(found: Fields) -> Progress | None:
    """The progress of the attempt that runs. What an earlier one said may still be there."""
    lease = found.get(b"progress_lease")
    if lease is None or lease != found.get(b"lease") or found[b"status"] != b"RUNNING":
        return None
    return Progress(
        number(found[b"progress"] or None),
        found[b"progress_text"].decode(),
        float(found[b"progress_at"]),
    )


def assignment(row: Sequence[bytes]) -> Assignment:
    """An attempt from the row of ``scripts/claims.lua``."""
    (seq, job_id, queue, kind, payload, attempt, lease, worker, priority, retry_count,
     max_retries, created_at, timeout, expires_in, labels, more, deaths) = row  # fmt: skip
    return Assignment(
        int(seq),
        job_id.decode(),
        spec(queue, None, kind, payload, priority, max_retries, None, timeout, labels, more),
        int(attempt),
        int(lease),
        worker.decode(),
        int(retry_count),
        moment(created_at),
        number(expires_in),
        int(deaths or 0),
    )


def event(found: Fields) -> Event:
    """An event from its entry in the stream."""
    before = found[b"from"]
    return Event(
        found[b"job_id"].decode(),
        int(found[b"version"]),
        STATES[before] if before else None,
        STATES[found[b"to"]],
        REASONS[found[b"reason"]],
        float(found[b"at"]),
        int(found[b"attempt"]),
        found[b"worker"].decode() or None,
        found[b"detail"].decode(),
        found[b"queue"].decode(),
    )


def held(row: Sequence[Value]) -> Held:
    """A lease from the row of ``scripts/held.lua``."""
    seq, lease, worker, state, cancel = row
    if seq is None or lease is None or worker is None or state is None:
        raise Internal("Redis: a lease without a job")
    return Held(int(seq), int(lease), worker.decode(), STATES[state], cancel is not None)


def queue(found: Fields) -> Queue:
    """A queue from its document."""
    return queue_of(
        {name.decode(): value for name, value in found.items()},
        name=found[b"name"].decode(),
        paused=found[b"paused"] == b"1",
        created_at=float(found[b"created_at"]),
    )


def stats(flat: Sequence[bytes], depth: Sequence[int]) -> QueueStats:
    """A queue with its figures."""
    found = fields(flat)
    succeeded, failed = int(found.get(b"succeeded", 0)), int(found.get(b"failed", 0))
    return QueueStats(
        queue=queue(found),
        depth=dict(zip(State, depth, strict=True)),
        processed=succeeded + failed,
        succeeded=succeeded,
        failed=failed,
        run_seconds=float(found.get(b"run_seconds", 0.0)),
        timed=succeeded + failed,
    )


def worker(flat: Sequence[bytes], last_seen: bytes, running: int) -> Worker:
    """A worker from its document."""
    found = fields(flat)
    types = json.loads(found.get(b"types", b"null"))
    info = WorkerInfo(
        id=found[b"worker_id"].decode(),
        incarnation=int(found[b"incarnation"]),
        hostname=found[b"hostname"].decode(),
        pid=int(found[b"pid"]),
        concurrency=int(found[b"concurrency"]),
        queues=tuple(json.loads(found[b"queues"])),
        version=found[b"version"].decode(),
        fallback=found.get(b"fallback") == b"1",
        types=None if types is None else frozenset(types),
        link=int(found[b"link"]),
        owner=found.get(b"owner", b"").decode(),
    )
    return Worker(
        info=info,
        status=WorkerStatus(found[b"status"].decode()),
        registered_at=moment(found[b"registered_at"]),
        last_seen=float(last_seen),
        running=running,
        overrun=int(found.get(b"overrun", 0)),
        partition=int(found[b"partition"]) if b"partition" in found else None,
        withheld=int(found.get(b"withheld", 0)),
    )
