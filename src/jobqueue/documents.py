"""Domain objects as JSON documents: what HTTP answers and ``jq-ctl`` prints, in one place."""

from __future__ import annotations

import base64
import json
from typing import Any

from jobqueue.core.job import Event, Health, Job, Worker, shown_owner
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import QueueStats
from jobqueue.core.stream import JobEvent
from jobqueue.logs import timestamp

Document = dict[str, Any]


def refuse_constant(constant: str) -> Any:
    """Refuse what Python writes where JSON has no number: NaN and Infinity."""
    raise ValueError(f"{constant} is not JSON")


def as_json(content: bytes) -> tuple[bool, Any]:
    """Whether bytes are JSON, and if so the value."""
    try:
        return True, json.loads(content.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return False, None


def rfc3339(moment: float | None) -> str | None:
    """A time in UTC."""
    return None if moment is None else timestamp(moment)


def _put_bytes(document: Document, name: str, content: bytes | None) -> None:
    if not content:
        document[name] = None
        return
    is_json, value = as_json(content)
    if is_json:
        document[name] = value
    else:
        document[f"{name}_base64"] = base64.b64encode(content).decode("ascii")


def job_fields(job: Job) -> Document:
    """A job, without its state, which views name differently, its payload and its result."""
    spec = job.spec
    return {
        "job_id": job.id,
        "queue": spec.queue,
        "type": spec.type,
        "finished": job.state in TERMINAL,
        "priority": spec.priority,
        "error": job.error,
        "reason": job.reason.value,
        "retry_count": job.retry_count,
        "max_retries": spec.max_retries,
        "attempt": job.attempt,
        "version": job.version,
        "created_at": rfc3339(job.created_at),
        "run_at": rfc3339(spec.run_at),
        "started_at": rfc3339(job.started_at),
        "completed_at": rfc3339(job.completed_at),
        "next_retry_at": rfc3339(job.next_retry_at),
        "expires_at": rfc3339(job.expires_at),
        "updated_at": rfc3339(job.updated_at),
        "worker_id": job.worker_id,
        "idempotency_key": spec.key,
        "labels": dict(spec.labels),
        "ttl": spec.ttl,
        "timeout": spec.timeout,
        "cancel_requested": job.cancel_requested,
        "hint": job.hint,
        "progress": progress_document(job.progress),
        **spec.more(),
    }


def job_document(job: Job) -> Document:
    """A job; bytes that are not JSON come as base64."""
    document = {"status": job.state.name, **job_fields(job)}
    _put_bytes(document, "payload", job.payload)
    _put_bytes(document, "result", job.result)
    return document


def progress_document(progress: Progress | None) -> Document | None:
    """How far a running attempt has come."""
    if progress is None:
        return None
    return {"value": progress.value, "text": progress.text, "at": rfc3339(progress.at)}


def event_document(event: Event) -> Document:
    """One transition."""
    return {
        "version": event.version,
        "from_status": None if event.from_state is None else event.from_state.name,
        "to_status": event.to_state.name,
        "reason": event.reason.value,
        "at": rfc3339(event.at),
        "attempt": event.attempt,
        "worker_id": event.worker_id,
        "detail": event.detail,
    }


def job_event_document(item: JobEvent) -> Document:
    """A transition with all that the stream tells of it; bytes that are not JSON come as base64."""
    event = item.event
    document: Document = {
        "event_id": item.event_id,
        "job_id": event.job_id,
        "queue": event.queue,
        **event_document(event),
    }
    if (created := item.created) is not None:
        asked = created.spec
        made: Document = {
            "type": asked.type,
            "priority": asked.priority,
            "max_retries": asked.max_retries,
            "seq": created.seq,
            "created_at": rfc3339(created.created_at),
            "run_at": rfc3339(asked.run_at),
            "expires_at": rfc3339(created.expires_at),
            "ttl": asked.ttl,
            "timeout": asked.timeout,
            "idempotency_key": asked.key,
            "idempotency_key_owner": asked.key_owner,
            "key_expires_at": rfc3339(created.key_expires_at),
            "labels": dict(asked.labels),
            **asked.more(),
        }
        _put_bytes(made, "payload", asked.payload)
        document["created"] = made
    if (failed := item.failed) is not None:
        document["failed"] = {
            "retry_count": failed.retry_count,
            "started_at": rfc3339(failed.started_at),
            "next_retry_at": rfc3339(failed.next_retry_at),
        }
    if (finished := item.finished) is not None:
        ended: Document = {
            "retry_count": finished.retry_count,
            "started_at": rfc3339(finished.started_at),
            "cancel_requested": finished.cancel_requested,
        }
        _put_bytes(ended, "result", finished.result)
        document["finished"] = ended
    return document


def queue_document(stats: QueueStats) -> Document:
    """A queue with its defaults and figures."""
    queue = stats.queue
    weights = queue.priority_weights
    return {
        "name": queue.name,
        "paused": queue.paused,
        **queue.settings(),
        "priority_weights": None if weights is None else {str(p): w for p, w in weights.items()},
        "created_at": rfc3339(queue.created_at),
        "depth": {state.name: stats.depth.get(state, 0) for state in State},
        "unfinished": stats.unfinished,
        "processed": stats.processed,
        "succeeded": stats.succeeded,
        "failed": stats.failed,
        "average_seconds": stats.average_seconds,
        "error_rate": stats.error_rate,
        "unserved": [{"type": one.type, "jobs": one.jobs} for one in stats.unserved],
    }


def worker_document(worker: Worker) -> Document:
    """A worker."""
    info = worker.info
    return {
        "worker_id": info.id,
        "status": worker.status.value,
        "hostname": info.hostname,
        "pid": info.pid,
        "version": info.version,
        "queues": list(info.queues),
        "types": None if info.types is None else sorted(info.types),
        "queues_left_out": worker.queues_left_out,
        "types_left_out": worker.types_left_out,
        "concurrency": info.concurrency,
        "running": worker.running,
        "overrun": worker.overrun,
        "owner": shown_owner(info.owner),
        "registered_at": rfc3339(worker.registered_at),
        "last_heartbeat": rfc3339(worker.last_seen),
    }


def health_document(health: Health) -> Document:
    """The parts of the system."""
    return {
        "ok": health.ok,
        "status": health.status,
        "version": health.version,
        "components": [
            {"name": part.name, "ok": part.ok, "detail": part.detail} for part in health.components
        ],
    }
