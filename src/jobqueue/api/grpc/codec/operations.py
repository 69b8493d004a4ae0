"""Queues, workers and health, as operators see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from jobqueue.api.grpc.codec.values import (
    MAX_INT63,
    REASON_TO_PB,
    STATE_TO_PB,
    STATUS_TO_PB,
    asked_reasons,
    state_from,
    status_from,
)
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import (
    ComponentHealth,
    Health,
    NotRetried,
    Retried,
    RetryQuery,
    Worker,
    WorkerInfo,
    shown_owner,
)
from jobqueue.core.queue import (
    SETTINGS,
    Queue,
    QueueSpec,
    QueueStats,
    QueueUpdate,
    SettingsSaid,
    WaitingType,
)
from jobqueue.pb.jq.v1 import operator_pb2, types_pb2
from jobqueue.wire import put_settings, read_settings, seconds, stamp


def queue_spec_to_pb(spec: QueueSpec) -> types_pb2.Queue:
    """Raises InvalidArgument for what the wire cannot carry."""
    return _queue_to_pb(spec.name, spec.paused, spec.said)


def _queue_to_pb(name: str, paused: bool, said: Mapping[str, Any]) -> types_pb2.Queue:
    try:
        message = types_pb2.Queue(name=name, paused=paused)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("name", str(error)) from None
    put_settings(message, said)
    return message


def queue_spec_from_pb(message: types_pb2.Queue) -> QueueSpec:
    """What is absent is left to the server's defaults."""
    said = cast(SettingsSaid, read_settings(message))
    return QueueSpec(message.name, paused=message.paused, **said)


def queue_update_to_pb(name: str, update: QueueUpdate) -> operator_pb2.UpdateQueueRequest:
    """Raises InvalidArgument for what the wire cannot carry."""
    # The wire has no empty mapping; strict is the default.
    reset = [field for field, value in update.said.items() if value is None or value == {}]
    queue = _queue_to_pb(name, False, update.said)
    return operator_pb2.UpdateQueueRequest(queue=queue, reset=reset)


def queue_update_from_pb(message: operator_pb2.UpdateQueueRequest) -> QueueUpdate:
    """What is absent stays as it is."""
    said = read_settings(message.queue)
    for asked in message.reset:
        field = asked.removesuffix("_seconds")
        if field not in SETTINGS:
            allowed = ", ".join(SETTINGS)
            raise InvalidArgument("reset", f"{asked[:80]!r} is no setting; allowed: {allowed}")
        if said.get(field) is not None:
            raise InvalidArgument("reset", f"{field} is given as well; give one or the other")
        said[field] = None
    return QueueUpdate(**cast(SettingsSaid, said))


def queue_to_pb(queue: Queue) -> types_pb2.Queue:
    """A queue as it is."""
    message = _queue_to_pb(queue.name, queue.paused, queue.settings())
    created_at = stamp(queue.created_at, "created_at")
    if created_at is not None:
        message.created_at.CopyFrom(created_at)
    return message


def queue_from_pb(message: types_pb2.Queue) -> Queue:
    """A queue as it is; a server of before may leave something out."""
    created_at = seconds(message.created_at) if message.HasField("created_at") else 0.0
    return Queue(
        name=message.name, paused=message.paused, created_at=created_at, **read_settings(message)
    )


def stats_to_pb(stats: QueueStats) -> types_pb2.QueueStats:
    """A queue with its figures."""
    return types_pb2.QueueStats(
        queue=queue_to_pb(stats.queue),
        depth=[
            types_pb2.StateCount(state=STATE_TO_PB[state], count=count)
            for state, count in stats.depth.items()
        ],
        processed=stats.processed,
        succeeded=stats.succeeded,
        failed=stats.failed,
        run_seconds=stats.run_seconds,
        timed=stats.timed,
        unserved=[types_pb2.UnservedType(type=one.type, jobs=one.jobs) for one in stats.unserved],
    )


def stats_from_pb(message: types_pb2.QueueStats) -> QueueStats:
    """A queue with its figures."""
    queue = queue_from_pb(message.queue)
    return QueueStats(
        queue=queue,
        depth={state_from(item.state): item.count for item in message.depth},
        processed=message.processed,
        succeeded=message.succeeded,
        failed=message.failed,
        run_seconds=message.run_seconds,
        timed=message.timed,
        unserved=tuple(WaitingType(queue.name, one.type, one.jobs) for one in message.unserved),
    )


def retry_query_to_pb(query: RetryQuery) -> operator_pb2.RetryDeadLettersRequest:
    """Raises InvalidArgument for what the wire cannot carry."""
    if not query.reasons:  # on the wire, none means failures
        raise InvalidArgument("reasons", "name at least one")
    try:
        return operator_pb2.RetryDeadLettersRequest(
            queue=query.queue,
            type=query.type,
            reasons=[REASON_TO_PB[reason] for reason in query.reasons],
            error=query.error,
            since=stamp(query.since, "since"),
            until=stamp(query.until, "until"),
            page_token=query.page_token,
            dry_run=query.dry_run,
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument("error", str(error)) from None


def retry_query_from_pb(message: operator_pb2.RetryDeadLettersRequest) -> RetryQuery:
    """Which dead letters a client means; without a reason: failures."""
    has = message.HasField
    query = RetryQuery(
        queue=message.queue if has("queue") else None,
        type=message.type if has("type") else None,
        error=message.error,
        since=seconds(message.since) if has("since") else None,
        until=seconds(message.until) if has("until") else None,
        page_token=message.page_token,
        dry_run=message.dry_run,
    )
    query.reasons = asked_reasons(message.reasons, "reasons") or query.reasons
    return query


def retried_to_pb(answer: Retried) -> operator_pb2.RetryDeadLettersResponse:
    """What one call did."""
    return operator_pb2.RetryDeadLettersResponse(
        looked_at=answer.looked_at,
        matched=answer.matched,
        retried=answer.retried,
        refused=[
            operator_pb2.NotRetried(job_id=one.job_id, message=one.message)
            for one in answer.refused
        ],
        next_page_token=answer.next_page_token,
    )


def retried_from_pb(message: operator_pb2.RetryDeadLettersResponse) -> Retried:
    """What one call did."""
    refused = [NotRetried(one.job_id, one.message) for one in message.refused]
    return Retried(
        message.looked_at, message.matched, message.retried, refused, message.next_page_token
    )


def info_to_pb(info: WorkerInfo) -> types_pb2.WorkerInfo:
    """Raises InvalidArgument for what the wire cannot carry."""
    try:
        return types_pb2.WorkerInfo(
            id=info.id,
            incarnation=info.incarnation,
            hostname=info.hostname,
            pid=info.pid,
            concurrency=info.concurrency,
            queues=info.queues,
            version=info.version,
            fallback=info.fallback,
            types=sorted(info.types or ()),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument("worker", str(error)) from None


def info_from_pb(message: types_pb2.WorkerInfo) -> WorkerInfo:
    """A worker as it was registered."""
    return WorkerInfo(
        id=message.id,
        incarnation=message.incarnation,
        hostname=message.hostname,
        pid=message.pid,
        concurrency=message.concurrency,
        queues=tuple(message.queues),
        version=message.version,
        fallback=message.fallback,
        types=frozenset(message.types) or None,
    )


def new_info_from_pb(message: types_pb2.WorkerInfo, owner: str) -> WorkerInfo:
    """A worker that this caller registers now; the engine checks the rest."""
    check_incarnation(message.incarnation)
    info = info_from_pb(message)
    info.owner = owner
    return info


def check_incarnation(value: int, field: str = "incarnation") -> int:
    """Stores keep it as a signed number."""
    if not 0 < value <= MAX_INT63:
        raise InvalidArgument(field, f"must be a random number from 1 to {MAX_INT63}")
    return value


def worker_to_pb(worker: Worker) -> types_pb2.Worker:
    """A worker as the store knows it."""
    return types_pb2.Worker(
        info=info_to_pb(worker.info),
        status=STATUS_TO_PB[worker.status],
        registered_at=stamp(worker.registered_at),
        last_seen=stamp(worker.last_seen),
        running=worker.running,
        owner=shown_owner(worker.info.owner),
        overrun=worker.overrun,
        queues_left_out=worker.queues_left_out,
        types_left_out=worker.types_left_out,
    )


def worker_from_pb(message: types_pb2.Worker) -> Worker:
    """A worker as the store knows it."""
    info = info_from_pb(message.info)
    info.owner = message.owner
    return Worker(
        info=info,
        status=status_from(message.status),
        registered_at=seconds(message.registered_at),
        last_seen=seconds(message.last_seen),
        running=message.running,
        overrun=message.overrun,
        queues_left_out=message.queues_left_out,
        types_left_out=message.types_left_out,
    )


def health_to_pb(health: Health) -> operator_pb2.GetHealthResponse:
    """Whether the system can do its work."""
    return operator_pb2.GetHealthResponse(
        ok=health.ok,
        version=health.version,
        components=[
            types_pb2.ComponentHealth(name=part.name, ok=part.ok, detail=part.detail)
            for part in health.components
        ],
    )


def health_from_pb(message: operator_pb2.GetHealthResponse) -> Health:
    """Whether the system can do its work."""
    return Health(
        ok=message.ok,
        version=message.version,
        components=[
            ComponentHealth(part.name, part.ok, part.detail) for part in message.components
        ],
    )
