"""Convert domain objects to and from documents (hashes) in Redis and arguments of scripts.

People can read the documents with ``redis-cli``: fields have names, states and reasons are words,
and a field without a value is missing. The times ``created_at``, ``updated_at``, ``last_heartbeat``
and ``registered_at`` are texts in RFC 3339. Times with which scripts calculate are seconds since
the epoch.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from jobqueue.core.decide import Entry, Live
from jobqueue.core.ids import new_lease
from jobqueue.core.job import (
    MAX_ERROR_HEAD,
    Assignment,
    DeadLetterCause,
    Event,
    Held,
    Job,
    JobSpec,
    NewJob,
    Worker,
    WorkerInfo,
    WorkerStatus,
)
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import SETTINGS, Queue
from jobqueue.core.store import ALL_QUEUES, Claim, Term
from jobqueue.stores.queue_rows import queue_of, write_value
from jobqueue.stores.rows import read_spec, stored_breakers, write_more

T = TypeVar("T")
Fields = Mapping[bytes, bytes]
Value = bytes | None

STATES: dict[bytes, State] = {state.name.encode(): state for state in State}
REASONS: dict[bytes, Reason] = {reason.value.encode(): reason for reason in Reason}
_FEW_TYPES = 4
_MOST_BYTES = 8 * 1024 * 1024  # of one script, because Redis does nothing else meanwhile
_TO_THE_SECOND = len("2026-01-01T00:00:00")
_TO_THE_MICROSECOND = len("2026-01-01T00:00:00.000000Z")


# -- values ----------------------------------------------------------------------------------


def fields(flat: Sequence[bytes]) -> Fields:
    """Convert a list in which each field is followed by its value into a mapping."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def split(values: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Return a list of fields, each followed by its value, and a list of fields to remove.

    A field whose value is None is to be removed.
    """
    said = [part for item in values.items() if item[1] is not None for part in item]
    return said, [field for field, value in values.items() if value is None]


def number(value: Value) -> float | None:
    """Return the number in a field, or None if the field is missing."""
    return None if value is None else float(value)


def text(value: Value) -> str | None:
    """Return the text in a field, or None if the field is missing."""
    return None if value is None else value.decode()


def opaque(data: bytes) -> msgspec.Raw:
    """Encode bytes as a MessagePack text, because scripts in Redis cannot read its binary type."""
    return msgspec.Raw(b"\xdb" + len(data).to_bytes(4, "big") + data)


def moment(text: bytes) -> float:
    """Convert an RFC 3339 text of a document to seconds since the epoch."""
    said = text.decode()
    if len(said) <= _TO_THE_MICROSECOND:
        return datetime.fromisoformat(said).timestamp()
    whole = datetime.fromisoformat(f"{said[:_TO_THE_SECOND]}Z").timestamp()
    return float(f"{whole:.0f}{said[_TO_THE_SECOND:-1]}")


def iso(at: float) -> str:
    """Convert seconds since the epoch to an RFC 3339 text for a document.

    The text has microseconds like the texts of scripts, or more digits if ``at`` has more.
    """
    said = f"{at:.6f}"
    if float(said) != at:
        said = f"{Decimal(repr(at)):f}"
    seconds, _, fraction = said.partition(".")
    whole = datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{fraction}Z"


def place_of(entry: bytes) -> tuple[int, int]:
    """Return the two numbers in the id of an entry of a Redis stream."""
    first, _, second = entry.partition(b"-")
    return int(first), int(second)


def in_parts(items: Sequence[T], most: int, size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Yield the items in parts of at most ``most`` items and a limited number of bytes.

    Without items, one empty part is yielded.
    """
    begin, size = 0, 0
    for n, item in enumerate(items):
        added = size_of(item)
        if n > begin and (n - begin == most or size + added > _MOST_BYTES):
            yield items[begin:n]
            begin, size = n, 0
        size += added
    yield items[begin:]


# -- to scripts ------------------------------------------------------------------------------


def packed_job(job: NewJob) -> tuple[Any, ...]:
    """Return a new job in the form that ``submit`` in ``scripts/jobs.lua`` reads."""
    spec = job.spec
    return (
        job.id, spec.queue, spec.type, opaque(spec.payload), _labels(spec), spec.priority,
        spec.max_retries, spec.ttl, spec.timeout, spec.run_at, spec.delay, spec.stored_key,
        None if spec.key is None else spec.fingerprint().hex(), spec.shared_key, write_more(spec),
        _unique(spec), spec.concurrency_key,
    )  # fmt: skip


def _unique(spec: JobSpec) -> tuple[str, str, float | None, str] | None:
    one = spec.unique
    return None if one is None else (one.stored, one.scope, one.period, one.on_conflict)


def _labels(spec: JobSpec) -> str | None:
    return json.dumps(dict(spec.labels), ensure_ascii=False) if spec.labels else None


def spec_fields(spec: JobSpec) -> dict[str, Any]:
    """Return the fields of a job's document that never change, as ``submit`` writes them."""
    return {
        "queue": spec.queue,
        "type": spec.type,
        "payload": opaque(spec.payload),
        "priority": spec.priority,
        "max_retries": spec.max_retries,
        "ttl": spec.ttl,
        "timeout": spec.timeout,
        "labels": _labels(spec),
        "more": write_more(spec),
        "idempotency_key": spec.stored_key,
        "unique": None if spec.unique is None else spec.unique.stored,
        "concurrency_key": spec.concurrency_key,  # also in ``more``; scripts read it here
    }


def live_fields(live: Live) -> dict[str, Any]:
    """Return the fields of a job's document that transitions change."""
    return {
        "status": live.state.name,
        "version": live.version,
        "reason": live.reason.value,
        "attempt": live.attempt,
        "retry_count": live.retry_count,
        "lease": None if live.lease is None else str(live.lease),
        "assigned_worker": live.worker_id,
        "cancel_requested": "1" if live.cancel_requested else None,
        "worker_deaths": live.deaths or None,
        "run_at": live.run_at,
        "expires_at": live.expires_at,
        "started_at": live.started_at,
        "completed_at": live.completed_at,
        "next_retry_at": live.due if live.state is State.FAILED else None,
        "error": live.error or None,
        "result": None if live.result is None else opaque(live.result),
    }


def packed_event(entry: Entry) -> tuple[Any, ...]:
    """Return an event in the form that scripts write to the stream of events."""
    _, version, before, state, reason, at, attempt, worker, detail, *_ = entry
    was = None if before is None else before.name
    more = _more_of(entry)
    return version, was, state.name, reason.value, repr(at), attempt, worker, detail, more


def _more_of(entry: Entry) -> str:
    """Return, as JSON, those fields of an event that a later transition of the job may change."""
    state, version = entry[3], entry[1]
    retry_count, started_at, due, cancelled = entry[10:]
    said: dict[str, Any] = {}
    if version == 1:
        said = {"run_at": due}
    elif state is State.FAILED:
        said = {"retry_count": retry_count, "started_at": started_at, "due": due}
    elif state is State.DEAD_LETTERED:
        cancel = cancelled or None
        said = {"retry_count": retry_count, "started_at": started_at, "cancel_requested": cancel}
    kept = {name: value for name, value in said.items() if value is not None}
    return json.dumps(kept, separators=(",", ":")) if kept else ""


def packed_claims(claims: Sequence[Claim]) -> list[tuple[Any, ...]]:
    """Return claims in the form that scripts read, with a new lease for the job of each slot."""
    return [
        (
            None if ALL_QUEUES in claim.queues else list(claim.queues),
            list(claim.without),
            [(worker, str(new_lease())) for worker in claim.slots],
            _types_of(claim),
        )
        for claim in claims
    ]


def _types_of(claim: Claim) -> list[str] | dict[str, bool] | None:
    """Return few types as a list and many types as a set, or None for all types.

    A script looks up each type of a list in the index, or each type of the index in the set.
    """
    if claim.types is None:
        return None
    return list(claim.types) if len(claim.types) <= _FEW_TYPES else dict.fromkeys(claim.types, True)


def seed() -> int:
    """Return a seed for the random numbers of a script.

    Without it, Redis would give the same random numbers to each run of a script.
    """
    return random.getrandbits(31)


def packed_term(term: Term | None) -> tuple[str, str] | None:
    """Return a term in the form that scripts compare."""
    return None if term is None else (str(term.holder), str(term.epoch))


def settings_of(queue: Queue) -> dict[str, Any]:
    """Return the fields of a queue's document, except its times and figures."""
    said = {
        setting.name: write_value(setting.kind, getattr(queue, setting.name))
        for setting in SETTINGS.values()
    }
    return {"name": queue.name, **said, "paused": "1" if queue.paused else "0"}


# -- from documents --------------------------------------------------------------------------


SPEC = (
    b"type", b"payload", b"priority", b"max_retries", b"ttl", b"timeout", b"labels", b"more",
    b"idempotency_key",
)  # fmt: skip
"""The fields of a job's spec, in the order of the parameters of ``spec``."""


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
    """Return a job's spec from the values of its fields."""
    return read_spec(
        queue.decode(), text(type) or "", payload or b"", int(priority or 0),
        int(max_retries or 0), number(ttl), number(timeout), run_at, text(key), text(labels),
        text(more),
    )  # fmt: skip


def job(found: Fields) -> Job:
    """Return the job in a document."""
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
        progress=_progress(found),
    )


def dead_letter(row: Sequence[bytes]) -> DeadLetterCause:
    """Return the dead letter in a row of the script ``describe``."""
    seq, version, job_id, queue, type, reason, error, at = row
    return DeadLetterCause(
        seq=int(seq),
        version=int(version),
        id=job_id.decode(),
        queue=queue.decode(),
        type=type.decode(),
        reason=REASONS[reason],
        error=error.decode(errors="ignore")[:MAX_ERROR_HEAD],
        at=float(at),
    )


def _progress(found: Fields) -> Progress | None:
    # The document may still contain the progress of an earlier attempt.
    lease = found.get(b"progress_lease")
    if lease is None or lease != found.get(b"lease") or found[b"status"] != b"RUNNING":
        return None
    value, at = number(found[b"progress"] or None), float(found[b"progress_at"])
    return Progress(value, found[b"progress_text"].decode(), at)


def assignment(row: Sequence[bytes]) -> Assignment:
    """Return the assignment in a row of ``row_of`` in ``scripts/claims.lua``."""
    (seq, job_id, queue, kind, payload, attempt, lease, worker, priority, retry_count,
     max_retries, created_at, timeout, expires_in, labels, more, deaths) = row  # fmt: skip
    asked = spec(queue, None, kind, payload, priority, max_retries, None, timeout, labels, more)
    return Assignment(
        int(seq), job_id.decode(), asked, int(attempt), int(lease), worker.decode(),
        int(retry_count), moment(created_at), number(expires_in), int(deaths or 0),
    )  # fmt: skip


def held_back(limits: Sequence[Any]) -> dict[str, float]:
    """Return ``Claimed.held_back`` from the last parts of a script's answer (``finish``)."""
    if not limits or limits[0] is None:  # the answer to a repeated call has no such parts
        return {}
    times = {name.decode(): float(seconds) for name, seconds in limits[0]}
    return {name: math.inf if seconds < 0 else seconds for name, seconds in times.items()}


def freed(limits: Sequence[Any]) -> set[str]:
    """Return ``Application.freed`` from the last parts of a script's answer (``finish``)."""
    return {name.decode() for name in limits[1]} if len(limits) > 1 and limits[1] else set()


def event(found: Fields) -> Event:
    """Return the event in an entry of the stream of events."""
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


def held(row: Sequence[Any]) -> Held:
    """Return the lease in a row of ``held_row`` in ``scripts/workers.lua``."""
    seq, lease, worker, state, cancel = row
    return Held(int(seq), int(lease), worker.decode(), STATES[state], cancel is not None)


def queue(found: Fields) -> Queue:
    """Return the queue in a document."""
    return queue_of(
        {name.decode(): value for name, value in found.items()},
        name=found[b"name"].decode(),
        paused=found[b"paused"] == b"1",
        created_at=float(found[b"created_at"]),
    )


def worker(flat: Sequence[bytes], last_seen: bytes, running: int) -> Worker:
    """Return the worker in a document, which is a list of fields and values."""
    found = fields(flat)
    return Worker(
        info=_worker_info(found),
        status=WorkerStatus(found[b"status"].decode()),
        registered_at=moment(found[b"registered_at"]),
        last_seen=float(last_seen),
        running=running,
        overrun=int(found.get(b"overrun", 0)),
        breakers=stored_breakers(text(found.get(b"breakers"))),
        partition=int(found[b"partition"]) if b"partition" in found else None,
        withheld=int(found.get(b"withheld", 0)),
    )


def worker_info(flat: Sequence[bytes]) -> WorkerInfo:
    """Return the registration in a worker's document, which is a list of fields and values."""
    return _worker_info(fields(flat))


def _worker_info(found: Mapping[bytes, bytes]) -> WorkerInfo:
    types = json.loads(found.get(b"types", b"null"))
    return WorkerInfo(
        id=found[b"worker_id"].decode(),
        incarnation=int(found[b"incarnation"]),
        hostname=found[b"hostname"].decode(),
        pid=int(found[b"pid"]),
        concurrency=int(found[b"concurrency"]),
        queues=tuple(json.loads(found.get(b"queues", b"[]"))),
        version=found[b"version"].decode(),
        fallback=found.get(b"fallback") == b"1",
        types=None if types is None else frozenset(types),
        link=int(found[b"link"]),
        owner=found.get(b"owner", b"").decode(),
    )
