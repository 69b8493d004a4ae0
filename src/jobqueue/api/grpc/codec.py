"""Convert domain objects to protobuf messages and back, for servicers and remote clients.

A ``…_to_pb`` function raises InvalidArgument for values that protobuf cannot encode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from google.protobuf import struct_pb2

from jobqueue.api.grpc.errors import error_from_pb, error_to_pb
from jobqueue.api.grpc.work_codec import MAX_INT63, breaker_from_pb, breaker_to_pb
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.explain import Cause, Explained, Explanation
from jobqueue.core.grouping import DeadLetterGroup, DeadLetterGroups
from jobqueue.core.job import (
    DEFAULT_QUEUE,
    ComponentHealth,
    Deleted,
    Event,
    Health,
    Job,
    JobQuery,
    JobSpec,
    NotDeleted,
    NotRetried,
    Retried,
    RetryQuery,
    SubmitResult,
    SubmitStatus,
    Worker,
    WorkerInfo,
    shown_owner,
)
from jobqueue.core.progress import Progress
from jobqueue.core.queue import (
    SETTINGS,
    HeldBack,
    Queue,
    QueueSpec,
    QueueStats,
    QueueUpdate,
    SettingsSaid,
    WaitingType,
)
from jobqueue.core.schedule import Overlap, ScheduleSpec
from jobqueue.core.unique import EXISTING, UNFINISHED, UniqueKey
from jobqueue.pb.jq.v1 import client_pb2, operator_pb2, schedules_pb2, types_pb2
from jobqueue.wire import (
    OVERLAPS,
    REASONS,
    STATES,
    message_fields,
    put_settings,
    read_more,
    read_schedule_spec,
    read_settings,
    read_spec,
    record_fields,
    schedule_spec_fields,
    seconds,
    stamp,
)

_NOT_CARRIED = (TypeError, ValueError, OverflowError)
# The requests that select dead letters.
_DeadLetterRequest = TypeVar(
    "_DeadLetterRequest",
    operator_pb2.RetryDeadLettersRequest,
    operator_pb2.DeleteDeadLettersRequest,
    operator_pb2.GroupDeadLettersRequest,
)


# -- jobs ------------------------------------------------------------------------------------------


def spec_to_pb(spec: JobSpec) -> types_pb2.JobSpec:
    try:
        values = message_fields(spec, types_pb2.JobSpec)
    except _NOT_CARRIED as reason:  # in a message inside the spec
        raise InvalidArgument("unique", str(reason)) from None
    try:
        return types_pb2.JobSpec(**values)
    except _NOT_CARRIED:
        raise _blame(values) from None


def _blame(values: Mapping[str, Any]) -> InvalidArgument:
    """Return an error that names the field whose value protobuf refused."""
    for name, value in values.items():
        try:
            types_pb2.JobSpec(**{name: value})
        except _NOT_CARRIED as reason:
            return InvalidArgument(name.removesuffix("_seconds"), str(reason))
    return InvalidArgument("spec", "cannot be encoded as protobuf")


def spec_from_pb(message: types_pb2.JobSpec) -> JobSpec:
    """Convert a spec without checking its values; the engine checks them."""
    # Not with jobqueue.wire: copying fields by their names needs twice the time, for every job.
    has = message.HasField
    more = read_more(message)
    if has("unique"):
        more["unique"] = _unique_from_pb(message.unique)
    return JobSpec(
        payload=message.payload,
        queue=message.queue if has("queue") else DEFAULT_QUEUE,
        type=message.type,
        priority=message.priority,
        max_retries=message.max_retries if has("max_retries") else None,
        ttl=message.ttl_seconds if has("ttl_seconds") else None,
        delay=message.delay_seconds if has("delay_seconds") else None,
        run_at=seconds(message.run_at) if has("run_at") else None,
        timeout=message.timeout_seconds if has("timeout_seconds") else None,
        key=message.idempotency_key if has("idempotency_key") else None,
        labels=dict(message.labels)
        if message.labels
        else {},  # dict() is slow, even for an empty map
        **more,
    )


def _unique_from_pb(message: types_pb2.Unique) -> UniqueKey:
    """Convert a client's unique key. Its owner is the caller, whatever the client says."""
    return UniqueKey(
        key=message.key,
        scope=message.scope or UNFINISHED,
        period=message.period_seconds if message.HasField("period_seconds") else None,
        on_conflict=message.on_conflict or EXISTING,
    )


def result_to_pb(result: SubmitResult) -> client_pb2.SubmitResult:
    if result.error is not None:
        return client_pb2.SubmitResult(error=error_to_pb(result.error))
    if result.status is SubmitStatus.DUPLICATE:
        return client_pb2.SubmitResult(job_id=result.job_id, duplicate=True)
    if result.status is SubmitStatus.EXISTING:
        return client_pb2.SubmitResult(job_id=result.job_id, existing=True)
    return client_pb2.SubmitResult(job_id=result.job_id)


def result_from_pb(message: client_pb2.SubmitResult) -> SubmitResult:
    if message.HasField("error"):
        error = error_from_pb(message.error)
        return SubmitResult(SubmitStatus.REFUSED, getattr(error, "job_id", ""), error)
    if message.duplicate:
        return SubmitResult(SubmitStatus.DUPLICATE, message.job_id)
    if message.existing:
        return SubmitResult(SubmitStatus.EXISTING, message.job_id)
    return SubmitResult(SubmitStatus.ACCEPTED, message.job_id)


def job_to_pb(job: Job) -> types_pb2.Job:
    progress = None
    if job.progress is not None:
        progress = types_pb2.Progress(**message_fields(job.progress, types_pb2.Progress))
    return types_pb2.Job(
        progress=progress,
        **message_fields(job, types_pb2.Job),
        **message_fields(job.spec, types_pb2.Job),
    )


def job_from_pb(message: types_pb2.Job) -> Job:
    progress = None
    if message.HasField("progress"):
        progress = Progress(**record_fields(message.progress, Progress))
    return Job(spec=read_spec(message), progress=progress, **record_fields(message, Job))


def event_to_pb(event: Event) -> types_pb2.Event:
    return types_pb2.Event(**message_fields(event, types_pb2.Event))


def event_from_pb(message: types_pb2.Event) -> Event:
    return Event(**record_fields(message, Event))


def explanation_to_pb(answer: Explanation) -> client_pb2.ExplainJobResponse:
    message = client_pb2.ExplainJobResponse(
        **message_fields(answer, client_pb2.ExplainJobResponse),
    )
    for one in answer.causes:
        cause = message.causes.add(code=one.code, text=one.text, advice=one.advice)
        cause.facts.update(one.facts)
    return message


def explanation_from_pb(message: client_pb2.ExplainJobResponse) -> Explanation:
    answer = Explanation(**record_fields(message, Explanation))
    for one in message.causes:
        code = Cause(one.code) if one.code in Cause.__members__ else one.code
        answer.causes.append(Explained(code, one.text, one.advice, _value(one.facts)))
    return answer


def _value(part: Any) -> Any:
    """Return a part of a Struct as Python objects. Numbers without a fraction become integers."""
    if isinstance(part, struct_pb2.Struct):
        return {name: _value(part.fields[name]) for name in part.fields}
    kind = part.WhichOneof("kind")
    if kind == "struct_value":
        return _value(part.struct_value)
    if kind == "list_value":
        return [_value(one) for one in part.list_value.values]
    if kind == "number_value":
        number = part.number_value
        return int(number) if number.is_integer() else number
    return None if kind in (None, "null_value") else getattr(part, kind)


def job_query_to_pb(query: JobQuery) -> client_pb2.ListJobsRequest:
    return client_pb2.ListJobsRequest(
        states=[STATES.to_pb[state] for state in query.states],
        reasons=[REASONS.to_pb[reason] for reason in query.reasons],
        **message_fields(query, client_pb2.ListJobsRequest),
    )


def job_query_from_pb(message: client_pb2.ListJobsRequest) -> JobQuery:
    return JobQuery(
        states=STATES.asked(message.states, "states"),
        reasons=REASONS.asked(message.reasons, "reasons"),
        **record_fields(message, JobQuery),
    )


# -- queues ----------------------------------------------------------------------------------------


def queue_spec_to_pb(spec: QueueSpec) -> types_pb2.Queue:
    return _queue_to_pb(spec.name, spec.paused, spec.said)


def _queue_to_pb(
    name: str, paused: bool, said: Mapping[str, Any], created_at: float | None = None
) -> types_pb2.Queue:
    created = stamp(created_at, "created_at")
    try:
        message = types_pb2.Queue(name=name, paused=paused, created_at=created)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("name", str(error)) from None
    put_settings(message, said)
    return message


def queue_spec_from_pb(message: types_pb2.Queue) -> QueueSpec:
    said = cast(SettingsSaid, read_settings(message))
    return QueueSpec(message.name, paused=message.paused, **said)


def queue_update_to_pb(name: str, update: QueueUpdate) -> operator_pb2.UpdateQueueRequest:
    # Protobuf has no empty mapping; an empty mapping means strict priority, the default.
    reset = [field for field, value in update.said.items() if value is None or value == {}]
    queue = _queue_to_pb(name, False, update.said)
    return operator_pb2.UpdateQueueRequest(queue=queue, reset=reset)


def queue_update_from_pb(message: operator_pb2.UpdateQueueRequest) -> QueueUpdate:
    said = read_settings(message.queue)
    for asked in message.reset:
        field = asked.removesuffix("_seconds")
        if field not in SETTINGS:
            allowed = ", ".join(SETTINGS)
            why = f"{asked[:80]!r} is not a setting; allowed: {allowed}"
            raise InvalidArgument("reset", why)
        if said.get(field) is not None:
            raise InvalidArgument("reset", f"{field} must be in queue or in reset, not in both")
        said[field] = None
    return QueueUpdate(**cast(SettingsSaid, said))


def queue_to_pb(queue: Queue) -> types_pb2.Queue:
    return _queue_to_pb(queue.name, queue.paused, queue.settings(), queue.created_at)


def queue_from_pb(message: types_pb2.Queue) -> Queue:
    """Convert a queue. Missing settings are allowed: an older server does not send all of them."""
    created_at = seconds(message.created_at) if message.HasField("created_at") else 0.0
    return Queue(
        name=message.name, paused=message.paused, created_at=created_at, **read_settings(message)
    )


def stats_to_pb(stats: QueueStats) -> types_pb2.QueueStats:
    return types_pb2.QueueStats(
        queue=queue_to_pb(stats.queue),
        depth=[
            types_pb2.StateCount(state=STATES.to_pb[state], count=count)
            for state, count in stats.depth.items()
        ],
        unserved=[types_pb2.UnservedType(type=one.type, jobs=one.jobs) for one in stats.unserved],
        held_back=[
            types_pb2.HeldBack(
                limit=one.limit, jobs=one.jobs, opens_in_seconds=one.opens_in, key=one.key
            )
            for one in stats.held_back
        ],
        **message_fields(stats, types_pb2.QueueStats),
    )


def stats_from_pb(message: types_pb2.QueueStats) -> QueueStats:
    queue = queue_from_pb(message.queue)
    return QueueStats(
        queue=queue,
        depth={STATES.from_pb(item.state): item.count for item in message.depth},
        unserved=tuple(WaitingType(queue.name, one.type, one.jobs) for one in message.unserved),
        held_back=tuple(
            HeldBack(
                one.limit,
                one.jobs,
                one.opens_in_seconds if one.HasField("opens_in_seconds") else None,
                one.key,
            )
            for one in message.held_back
        ),
        **record_fields(message, QueueStats),
    )


# -- schedules -------------------------------------------------------------------------------------


def schedule_spec_to_pb(spec: ScheduleSpec) -> schedules_pb2.ScheduleSpec:
    try:
        return schedules_pb2.ScheduleSpec(**schedule_spec_fields(spec))
    except _NOT_CARRIED as error:
        spec_to_pb(spec.job)  # raises the better error for a field of the job
        raise InvalidArgument("schedule", str(error)) from None


def schedule_spec_from_pb(message: schedules_pb2.ScheduleSpec) -> ScheduleSpec:
    """Convert a definition without checking its values; the engine checks them."""
    if not message.HasField("job"):
        raise InvalidArgument("job", "is missing")
    if not message.overlap:
        message.overlap = OVERLAPS.to_pb[Overlap.ALLOW]
    OVERLAPS.asked([message.overlap], "overlap")
    return read_schedule_spec(message, spec_from_pb(message.job))


# -- dead letters ----------------------------------------------------------------------------------


def retry_query_to_pb(query: RetryQuery, kind: type[_DeadLetterRequest]) -> _DeadLetterRequest:
    if not query.reasons:  # in the message, no reasons would mean all failures
        raise InvalidArgument("reasons", "must contain at least one reason")
    try:
        return kind(
            reasons=[REASONS.to_pb[reason] for reason in query.reasons],
            **message_fields(query, kind),
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument("error", str(error)) from None


def retry_query_from_pb(
    message: operator_pb2.RetryDeadLettersRequest
    | operator_pb2.DeleteDeadLettersRequest
    | operator_pb2.GroupDeadLettersRequest,
) -> RetryQuery:
    query = RetryQuery(**record_fields(message, RetryQuery))
    query.reasons = REASONS.asked(message.reasons, "reasons") or query.reasons
    return query


def retried_to_pb(answer: Retried) -> operator_pb2.RetryDeadLettersResponse:
    return operator_pb2.RetryDeadLettersResponse(
        refused=[
            operator_pb2.NotRetried(job_id=one.job_id, message=one.message)
            for one in answer.refused
        ],
        **message_fields(answer, operator_pb2.RetryDeadLettersResponse),
    )


def retried_from_pb(message: operator_pb2.RetryDeadLettersResponse) -> Retried:
    refused = [NotRetried(one.job_id, one.message) for one in message.refused]
    return Retried(refused=refused, **record_fields(message, Retried))


def deleted_to_pb(answer: Deleted) -> operator_pb2.DeleteDeadLettersResponse:
    return operator_pb2.DeleteDeadLettersResponse(
        refused=[
            operator_pb2.NotDeleted(job_id=one.job_id, message=one.message)
            for one in answer.refused
        ],
        **message_fields(answer, operator_pb2.DeleteDeadLettersResponse),
    )


def deleted_from_pb(message: operator_pb2.DeleteDeadLettersResponse) -> Deleted:
    refused = [NotDeleted(one.job_id, one.message) for one in message.refused]
    return Deleted(refused=refused, **record_fields(message, Deleted))


def groups_to_pb(answer: DeadLetterGroups) -> operator_pb2.GroupDeadLettersResponse:
    kind = operator_pb2.DeadLetterGroup
    return operator_pb2.GroupDeadLettersResponse(
        groups=[kind(**message_fields(one, kind)) for one in answer.groups],
        **message_fields(answer, operator_pb2.GroupDeadLettersResponse),
    )


def groups_from_pb(message: operator_pb2.GroupDeadLettersResponse) -> DeadLetterGroups:
    answer = DeadLetterGroups(**record_fields(message, DeadLetterGroups))
    for one in message.groups:
        found = DeadLetterGroup(**record_fields(one, DeadLetterGroup))
        found.queues, found.by_time = list(one.queues), list(one.by_time)
        answer.groups.append(found)
    return answer


# -- workers and health ----------------------------------------------------------------------------


def info_to_pb(info: WorkerInfo) -> types_pb2.WorkerInfo:
    values = message_fields(info, types_pb2.WorkerInfo)
    try:
        return types_pb2.WorkerInfo(**{**values, "types": sorted(info.types or ())})
    except _NOT_CARRIED as error:
        raise InvalidArgument("worker", str(error)) from None


def info_from_pb(message: types_pb2.WorkerInfo, owner: str) -> WorkerInfo:
    info = WorkerInfo(owner=owner, **record_fields(message, WorkerInfo))
    info.types = frozenset(message.types) or None
    return info


def new_info_from_pb(message: types_pb2.WorkerInfo, owner: str) -> WorkerInfo:
    """Convert a new worker and check its incarnation; the engine checks the other fields."""
    check_incarnation(message.incarnation)
    return info_from_pb(message, owner)


def check_incarnation(value: int) -> int:
    """Raise InvalidArgument if stores, which use signed numbers, cannot save the incarnation."""
    if not 0 < value <= MAX_INT63:
        raise InvalidArgument("incarnation", f"must be a random number from 1 to {MAX_INT63}")
    return value


def worker_to_pb(worker: Worker) -> types_pb2.Worker:
    return types_pb2.Worker(
        breakers=[breaker_to_pb(one) for one in worker.breakers],
        info=info_to_pb(worker.info),
        owner=shown_owner(worker.info.owner),
        **message_fields(worker, types_pb2.Worker),
    )


def worker_from_pb(message: types_pb2.Worker) -> Worker:
    info = info_from_pb(message.info, message.owner)
    breakers = tuple(breaker_from_pb(one) for one in message.breakers)
    return Worker(info=info, breakers=breakers, **record_fields(message, Worker))


def health_to_pb(health: Health) -> operator_pb2.GetHealthResponse:
    return operator_pb2.GetHealthResponse(
        ok=health.ok,
        version=health.version,
        components=[
            types_pb2.ComponentHealth(name=part.name, ok=part.ok, detail=part.detail)
            for part in health.components
        ],
    )


def health_from_pb(message: operator_pb2.GetHealthResponse) -> Health:
    components = [ComponentHealth(part.name, part.ok, part.detail) for part in message.components]
    return Health(ok=message.ok, version=message.version, components=components)
