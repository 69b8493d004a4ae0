"""Convert domain objects to JSON documents, for answers over HTTP and output of ``jq-ctl``."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from jobqueue.core.explain import Explanation
from jobqueue.core.job import Event, Health, Job, JobSpec, Worker, shown_owner
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import QueueStats
from jobqueue.core.schedule import Schedule, ScheduleState
from jobqueue.core.stream import JobEvent, ScheduleEvent
from jobqueue.logs import timestamp

Document = dict[str, Any]


def refuse_constant(constant: str) -> Any:
    """Raise ValueError for NaN and Infinity, which Python's parser accepts although JSON does not.

    Pass this function to ``json.loads`` as ``parse_constant``.
    """
    raise ValueError(f"{constant} is not JSON")


def as_json(content: bytes) -> tuple[bool, Any]:
    """Parse bytes as JSON. Return True and the value, or False and None if this fails."""
    try:
        return True, json.loads(content.decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return False, None


def rfc3339(moment: float | None) -> str | None:
    """Format seconds since the epoch as a time in UTC by RFC 3339; None stays None."""
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


def _spec_fields(spec: JobSpec) -> Document:
    return {
        "type": spec.type,
        "priority": spec.priority,
        "max_retries": spec.max_retries,
        "run_at": rfc3339(spec.run_at),
        "ttl": spec.ttl,
        "timeout": spec.timeout,
        "idempotency_key": spec.key,
        "labels": dict(spec.labels),
        **spec.more(),
        "unique": None if spec.unique is None else spec.unique.document(),
    }


def job_fields(job: Job) -> Document:
    """Return the document of a job without payload, result and state.

    The caller adds the state, because the views name the states differently.
    """
    return {
        "job_id": job.id,
        "queue": job.queue,
        **_spec_fields(job.spec),
        "finished": job.state in TERMINAL,
        "error": job.error,
        "reason": job.reason.value,
        "retry_count": job.retry_count,
        "attempt": job.attempt,
        "version": job.version,
        "created_at": rfc3339(job.created_at),
        "started_at": rfc3339(job.started_at),
        "completed_at": rfc3339(job.completed_at),
        "next_retry_at": rfc3339(job.next_retry_at),
        "expires_at": rfc3339(job.expires_at),
        "updated_at": rfc3339(job.updated_at),
        "worker_id": job.worker_id,
        "cancel_requested": job.cancel_requested,
        "hint": job.hint,
        "progress": progress_document(job.progress),
    }


def job_document(job: Job) -> Document:
    """Return the document of a job. Payload and result are in base64 if they are not JSON."""
    document = {"status": job.state.name, **job_fields(job)}
    _put_bytes(document, "payload", job.payload)
    _put_bytes(document, "result", job.result)
    return document


def progress_document(progress: Progress | None) -> Document | None:
    if progress is None:
        return None
    return {"value": progress.value, "text": progress.text, "at": rfc3339(progress.at)}


def explanation_document(answer: Explanation) -> Document:
    return {
        "job_id": answer.job_id,
        "status": answer.state.name,
        "at": rfc3339(answer.at),
        "causes": [
            {
                "code": str(one.code),
                "text": one.text,
                "advice": one.advice,
                "facts": _with_times(one.facts),
            }
            for one in answer.causes
        ],
    }


def _with_times(facts: Any) -> Any:
    """Return facts of an explanation with their times in the form of all documents."""
    if isinstance(facts, Mapping):
        return {
            name: rfc3339(value) if name.endswith("_at") else _with_times(value)
            for name, value in facts.items()
        }
    return [_with_times(one) for one in facts] if isinstance(facts, list) else facts


def event_document(event: Event) -> Document:
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
    """Return the document of a record of the event stream.

    Payload and result are in base64 if they are not JSON.
    """
    event = item.event
    document: Document = {
        "event_id": item.event_id,
        "job_id": event.job_id,
        "queue": event.queue,
        **event_document(event),
    }
    if (created := item.created) is not None:
        made: Document = {
            **_spec_fields(created.spec),
            "seq": created.seq,
            "created_at": rfc3339(created.created_at),
            "expires_at": rfc3339(created.expires_at),
            "idempotency_key_owner": created.spec.key_owner,
            "key_expires_at": rfc3339(created.key_expires_at),
        }
        _put_bytes(made, "payload", created.spec.payload)
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
    queue = stats.queue
    weights = queue.priority_weights
    return {
        "name": queue.name,
        "paused": queue.paused,
        **queue.settings(),
        "priority_weights": None if weights is None else {str(p): w for p, w in weights.items()},
        "key_weights": None if queue.key_weights is None else dict(queue.key_weights),
        "created_at": rfc3339(queue.created_at),
        "depth": {state.name: stats.depth.get(state, 0) for state in State},
        "unfinished": stats.unfinished,
        "processed": stats.processed,
        "succeeded": stats.succeeded,
        "failed": stats.failed,
        "average_seconds": stats.average_seconds,
        "error_rate": stats.error_rate,
        "unserved": [{"type": one.type, "jobs": one.jobs} for one in stats.unserved],
        "held_back": [
            {"limit": one.limit, "key": one.key, "jobs": one.jobs, "opens_in": one.opens_in}
            for one in stats.held_back
        ],
    }


def schedule_document(schedule: Schedule, *, payload: bool = False) -> Document:
    """Return the document of a schedule; its payload, if wanted, is in base64 if it is not JSON."""
    spec, job = schedule.spec, schedule.spec.job
    said: Document = {
        "queue": job.queue,
        "type": job.type,
        "priority": job.priority,
        "max_retries": job.max_retries,
        "ttl": job.ttl,
        "delay": job.delay,
        "timeout": job.timeout,
        "labels": dict(job.labels),
        **{name: value for name, value in job.more().items() if name != "unique"},
    }
    if payload:
        _put_bytes(said, "payload", job.payload)
    return {
        "name": spec.name,
        "cron": spec.cron,
        "every": spec.every,
        "timezone": spec.timezone,
        "overlap": spec.overlap.value,
        "catch_up": spec.catch_up,
        "source": schedule.source.value,
        "created_at": rfc3339(schedule.created_at),
        "updated_at": rfc3339(schedule.updated_at),
        "revision": schedule.revision,
        **_state_fields(schedule.state),
        "job": said,
    }


def _state_fields(state: ScheduleState) -> Document:
    return {
        "paused": state.paused,
        "next_at": rfc3339(state.next_at),
        "waiting_at": rfc3339(state.waiting_at),
        "last_at": rfc3339(state.last_at),
        "last_job_id": state.last_job_id or None,
        "skipped": state.skipped,
        "skipped_at": rfc3339(state.skipped_at),
        "skipped_why": state.skipped_why,
        "problem": state.problem,
    }


def schedule_event_document(item: ScheduleEvent) -> Document:
    """Return the document of a schedule's record in the event stream."""
    document: Document = {
        "event_id": item.event_id,
        "name": item.name,
        "what": item.change.name,
        "revision": item.revision,
        "at": rfc3339(item.at),
        **_state_fields(item.state),
    }
    if item.schedule is not None:
        document["schedule"] = schedule_document(item.schedule, payload=True)
    return document


def worker_document(worker: Worker) -> Document:
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
        "breakers": [
            {
                "type": one.type,
                "failures": one.failures,
                "until": rfc3339(one.until),
                "trial": bool(one.trial),
            }
            for one in worker.breakers
        ],
        "owner": shown_owner(info.owner),
        "registered_at": rfc3339(worker.registered_at),
        "last_heartbeat": rfc3339(worker.last_seen),
    }


def health_document(health: Health) -> Document:
    return {
        "ok": health.ok,
        "status": health.status,
        "version": health.version,
        "components": [
            {"name": part.name, "ok": part.ok, "detail": part.detail} for part in health.components
        ],
    }
