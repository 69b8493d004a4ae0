"""Define the fields of request bodies, and decode the bodies within limits.

The stored payload has the same bytes as in the request (``msgspec.Raw``).
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from jobqueue.api.http.errors import TooLarge
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.clock import LATEST, MAX_SECONDS
from jobqueue.core.cron import MAX_CRON_LENGTH
from jobqueue.core.errors import InvalidArgument, JobQueueError
from jobqueue.core.job import DEFAULT_QUEUE, MORE, JobSpec
from jobqueue.core.queue import (
    MAX_KEY_WEIGHTS,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_WEIGHT,
    SETTINGS,
    Kind,
    QueueSpec,
    QueueUpdate,
    Setting,
    SettingsSaid,
)
from jobqueue.core.retry import PROFILES as RETRY_PROFILES
from jobqueue.core.schedule import MAX_EVERY, MAX_NAME_LENGTH, Overlap, ScheduleSpec
from jobqueue.core.texts import (
    MAX_CONCURRENCY_KEY_LENGTH,
    MAX_KEY_LENGTH,
    MAX_LABEL_LENGTH,
    MAX_LABELS,
    MAX_LABELS_BYTES,
    MAX_TYPE_LENGTH,
    QUEUE_NAME,
)
from jobqueue.core.unique import CONFLICTS, EXISTING, SCOPES, UNFINISHED, UniqueKey
from jobqueue.core.waiting import LONG, in_turns, in_turns_by_size, turn


def _stated(description: str, **schema: Any) -> Meta:
    """Return a description and limits of a field for the OpenAPI document.

    Only the backend checks the limits, because its errors are better.
    """
    return Meta(description=description, extra_json_schema=schema)


# Integers, because the document would show floats as 315360000.0.
_SPAN = {"exclusiveMinimum": 0, "maximum": int(MAX_SECONDS)}
EPOCH = {"minimum": 0, "maximum": int(LATEST)}
RFC3339 = {"format": "date-time", "pattern": r"^(19[7-9]\d|[2-9]\d{3})-"}
"""The schema of a time in RFC 3339, from 1970 on."""
NAME = f"^{QUEUE_NAME}$"

SETTING_TYPES: Mapping[Kind, Any] = {
    Kind.WHOLE: int,
    Kind.SECONDS: float,
    Kind.SHARE: float,
    Kind.PROFILE: str,
    Kind.WEIGHTS: dict[int, int],
    Kind.KEY_WEIGHTS: dict[str, int],
}


def _setting_field(setting: Setting) -> tuple[str, Any, Any]:
    """Return the name, type and default of a queue setting's field in a request body."""
    schema: dict[str, Any]
    if setting.kind is Kind.WEIGHTS:
        schema = {
            "propertyNames": {"pattern": f"^[0-{MAX_PRIORITY}]$"},
            "additionalProperties": {"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT},
        }
    elif setting.kind is Kind.KEY_WEIGHTS:
        schema = {
            "propertyNames": {"minLength": 1, "maxLength": MAX_CONCURRENCY_KEY_LENGTH},
            "additionalProperties": {"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT},
            "maxProperties": MAX_KEY_WEIGHTS,
        }
    elif setting.kind is Kind.PROFILE:
        schema = {"enum": [*RETRY_PROFILES, None]}
    else:
        above_zero = setting.kind is Kind.SECONDS and not setting.zero
        schema = {
            "exclusiveMinimum" if above_zero else "minimum": 0,
            "maximum": 1 if setting.kind is Kind.SHARE else int(setting.most),
        }
    zero = f"; 0: {setting.zero}" if setting.zero else ""
    described = _stated(f"{setting.kind.value}{zero}; null: the server's default", **schema)
    return setting.name, Annotated[SETTING_TYPES[setting.kind] | None, described] | UnsetType, UNSET


class UniqueBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Says that at most one job of the queue may have a key at a time."""

    key: Annotated[str, _stated("chosen for equal jobs", minLength=1, maxLength=MAX_KEY_LENGTH)]
    scope: Annotated[
        str,
        _stated("in which an earlier job with the key is in the way", enum=list(SCOPES)),
    ] = UNFINISHED
    period: Annotated[
        float | None,
        _stated("in place of the scope: seconds after the earlier job's submit", **_SPAN),
    ] = None
    on_conflict: Annotated[
        str,
        _stated(
            "answer with the earlier job, refuse the submit, or take the place of the earlier job"
            " (with the scope waiting)",
            enum=list(CONFLICTS),
        ),
    ] = EXISTING

    def value(self) -> UniqueKey:
        return UniqueKey(
            key=self.key, scope=self.scope, period=self.period, on_conflict=self.on_conflict
        )


class JobBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes a job to submit. Only ``payload`` is required: any JSON value, stored unchanged."""

    payload: Annotated[
        Raw, _stated("any JSON value but the empty string", **{"not": {"const": ""}})
    ] = msgspec.field(default_factory=Raw)
    queue: Annotated[str, _stated("an existing queue", pattern=NAME)] = DEFAULT_QUEUE
    type: Annotated[
        str | None,
        _stated(
            "the task's name; by default payload.task, then the queue's default handler",
            maxLength=MAX_TYPE_LENGTH,
        ),
    ] = None
    priority: Annotated[int, _stated("0 to 9, 9 first", minimum=0, maximum=MAX_PRIORITY)] = 0
    max_retries: Annotated[
        int | None, _stated("null: the queue's default", minimum=0, maximum=MAX_RETRIES)
    ] = None
    ttl: Annotated[
        float | None,
        _stated("seconds within which the job must start, or it becomes a dead letter", **_SPAN),
    ] = None
    delay: Annotated[
        float | None,
        _stated(
            "seconds before the job may start, fewer than its ttl; not together with run_at",
            minimum=0,
            maximum=int(MAX_SECONDS),
        ),
    ] = None
    run_at: Annotated[
        Annotated[str, Meta(extra_json_schema=RFC3339)]
        | Annotated[float, Meta(extra_json_schema=EPOCH)]
        | Annotated[int, Meta(extra_json_schema=EPOCH)]
        | None,
        Meta(description="start time, within the ttl: RFC 3339 with an offset, or epoch seconds"),
    ] = None
    timeout: Annotated[float | None, _stated("seconds one attempt may run", **_SPAN)] = None
    idempotency_key: Annotated[
        str | None,
        _stated(
            "a second submit with this key returns this job",
            minLength=1,
            maxLength=MAX_KEY_LENGTH,
        ),
    ] = None
    unique: Annotated[UniqueBody | None, Meta(description="null: any number of equal jobs")] = None
    concurrency_key: Annotated[
        str | None,
        _stated(
            "limits and shares of the queue count the jobs of equal keys together",
            minLength=1,
            maxLength=MAX_CONCURRENCY_KEY_LENGTH,
        ),
    ] = None
    labels: Annotated[
        dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": MAX_LABEL_LENGTH})]],
        _stated(
            f"at most {MAX_LABELS_BYTES} bytes together",
            maxProperties=MAX_LABELS,
            propertyNames={"minLength": 1, "maxLength": MAX_LABEL_LENGTH},
        ),
    ] = msgspec.field(default_factory=dict)

    def spec(self, settings: HttpFaceSettings) -> JobSpec:
        """Return the job's spec. Raise InvalidArgument for errors that the backend cannot find."""
        payload = bytes(self.payload)
        if not payload:
            raise InvalidArgument("payload", 'is missing; allowed: any JSON value but ""')
        if payload == b'""':
            raise InvalidArgument("payload", "must not be empty")
        if len(payload) > settings.max_payload_bytes:
            raise TooLarge(
                "payload",
                f"has {len(payload)} bytes; at most {settings.max_payload_bytes} are allowed",
            )
        return JobSpec(
            payload=payload,
            queue=self.queue,
            type=self.type
            if self.type is not None
            else _task_in(payload, required=settings.view == "scheduler"),
            priority=self.priority,
            max_retries=self.max_retries,
            ttl=self.ttl,
            delay=self.delay,
            run_at=epoch(self.run_at, "run_at"),
            timeout=self.timeout,
            key=self.idempotency_key,
            labels=self.labels,
            unique=None if self.unique is None else self.unique.value(),
            **{name: getattr(self, name) for name in MORE if name != "unique"},
        )


QueuePatch = msgspec.defstruct(
    "QueuePatch",
    [_setting_field(setting) for setting in SETTINGS.values()],
    namespace={"__doc__": "Describes a change of a queue. Absent settings do not change."},
    forbid_unknown_fields=True,
)


class QueueBody(QueuePatch):  # type: ignore[valid-type,misc]
    """Describes a queue to create. Only ``name`` is required."""

    name: Annotated[str, _stated("the name that jobs give as their queue", pattern=NAME)] = ""
    paused: bool = False


def _said(body: Struct) -> SettingsSaid:
    """Return the settings in a body by their names, without absent settings."""
    said = {name: getattr(body, name) for name in SETTINGS}
    return cast(SettingsSaid, {name: value for name, value in said.items() if value is not UNSET})


class _Paid(Struct):
    payload: Raw = msgspec.field(default_factory=Raw)


class _Tasked(Struct):
    task: Raw = msgspec.field(default_factory=Raw)


class _RawBatch(Struct, forbid_unknown_fields=True):
    jobs: list[Raw] | None = None


class _Item(Struct):
    """Counts a job of a batch when it is decoded, without storing the job."""

    def __post_init__(self) -> None:
        _counting.left -= 1
        if _counting.left < 0:
            raise ValueError("the batch has too many items")  # ends the decoding


class _CountedBatch(Struct):
    jobs: list[_Item] | None = None


class _Counting(threading.local):
    left = 0


_counting = _Counting()


class BatchBody(Struct, forbid_unknown_fields=True):
    """Lists jobs to submit together. Each job is accepted or refused by itself."""

    jobs: list[JobBody] | None = None


class _ScheduleFields(Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, _stated("the schedule's name", minLength=1, maxLength=MAX_NAME_LENGTH)] = (
        ""
    )
    cron: Annotated[
        str,
        _stated(
            "minute hour day-of-month month day-of-week, or like @hourly; or give every",
            maxLength=MAX_CRON_LENGTH,
        ),
    ] = ""
    every: Annotated[
        int | None,
        _stated("whole seconds between two ticks; or give cron", minimum=1, maximum=MAX_EVERY),
    ] = None
    timezone: Annotated[str, _stated("the time zone of cron, like Europe/Zurich")] = "UTC"
    overlap: Annotated[
        str,
        _stated(
            "what happens while the last job is unfinished", enum=[one.value for one in Overlap]
        ),
    ] = Overlap.ALLOW.value
    catch_up: Annotated[
        float | None,
        _stated(
            "seconds that the newest missed tick may be late; 0: missed ticks are skipped; null:"
            " the server's setting",
            minimum=0,
            maximum=MAX_EVERY,
        ),
    ] = None


class ScheduleBody(_ScheduleFields):
    """Describes a schedule to create: a name, its times (``cron`` or ``every``), and its job."""

    job: Annotated[
        JobBody | None, _stated("the job of each tick, without idempotency_key, run_at and unique")
    ] = None


class _RawSchedule(_ScheduleFields):
    job: Raw = msgspec.field(default_factory=Raw)


_JOB = msgspec.json.Decoder(JobBody)
_SCHEDULE = msgspec.json.Decoder(_RawSchedule)
_QUEUE = msgspec.json.Decoder(QueueBody)
_PATCH = msgspec.json.Decoder(QueuePatch)
_BATCH = msgspec.json.Decoder(BatchBody)
_COUNTED_BATCH = msgspec.json.Decoder(_CountedBatch)
_RAW_BATCH = msgspec.json.Decoder(_RawBatch)
_TASKED = msgspec.json.Decoder(_Tasked)
_PAID = msgspec.json.Decoder(_Paid)
_TEXT = msgspec.json.Decoder(str)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_WHOLE = {"priority", "every", *(one.name for one in SETTINGS.values() if one.kind is Kind.WHOLE)}

_T = TypeVar("_T")
# A batch with more names than this is decoded job by job. Each job then has the size limit of a
# single submit, which also limits its labels.
_MANY_NAMES = 300_000
# The most colons in a job beside its payload, or it has too many labels: those that are allowed
# together have fewer bytes. To decode a hundred thousand labels takes some 20 ms.
_MANY_COLONS = 40_000
_NAME_EFFORT = 16
_BYTE = re.compile(r" \(byte (\d+)\)$")
# Parts of msgspec's messages. No patterns look for them: the caller chooses the name of an unknown
# field, and a pattern would try each of a million beginnings to the end.
_UNKNOWN = "unknown field `"
_AT = " - at `"
_IN_KEYS = "key` in `"


def decode_job(body: bytes, settings: HttpFaceSettings) -> JobSpec:
    return _decode_one(body).spec(settings)


def effort(body: bytes) -> int:
    """Return the bytes that a body counts as for its turn. A name takes longer than its bytes."""
    return len(body) + _NAME_EFFORT * body.count(b":")


def _decode_one(body: bytes) -> JobBody:
    if body.count(b":") > _MANY_COLONS:  # perhaps in the payload, which is not decoded
        with contextlib.suppress(msgspec.DecodeError, RecursionError):  # the next pass says why
            payload = bytes(_PAID.decode(body).payload)
            # Not only those of the labels: a body may repeat a field, and the last one counts.
            if body.count(b":") - payload.count(b":") > _MANY_COLONS:
                allowed = f"the labels are too long; at most {MAX_LABELS_BYTES} bytes are allowed"
                raise InvalidArgument("labels", allowed)
    return _decode(_JOB, JobBody, body)


def decode_queue(body: bytes) -> QueueSpec:
    queue = _decode(_QUEUE, QueueBody, body)
    if not queue.name:
        raise InvalidArgument("name", "is missing; a queue needs a name")
    return QueueSpec(queue.name, paused=queue.paused, **_said(queue))


def decode_queue_patch(body: bytes) -> QueueUpdate:
    return QueueUpdate(**_said(_decode(_PATCH, QueuePatch, body)))


def decode_schedule(body: bytes, settings: HttpFaceSettings) -> ScheduleSpec:
    found = _decode(_SCHEDULE, ScheduleBody, body)
    if not found.name:
        raise InvalidArgument("name", "is missing; a schedule needs a name")
    if not bytes(found.job) or bytes(found.job) == b"null":
        raise InvalidArgument("job", "is missing; a schedule needs a job with a payload")
    if found.overlap not in list(Overlap):
        allowed = ", ".join(Overlap)
        raise InvalidArgument("overlap", f"{found.overlap[:80]!r} is unknown; allowed: {allowed}")
    try:
        job = _decode(_JOB, JobBody, bytes(found.job)).spec(settings)
    except InvalidArgument as error:
        raise type(error)(f"job.{error.field}", error.problem) from None
    return ScheduleSpec(
        name=found.name,
        job=job,
        cron=found.cron,
        every=found.every,
        timezone=found.timezone,
        overlap=Overlap(found.overlap),
        catch_up=found.catch_up,
    )


async def decode_batch(body: bytes, settings: HttpFaceSettings) -> list[JobSpec | JobQueueError]:
    """Decode a batch. Return a spec or an error for each item.

    A first pass counts the items without storing them, because an item of three bytes would need
    far more memory when decoded.
    """
    if len(body) > LONG:
        await turn()
    if body.count(b",") >= settings.max_batch_jobs:
        _count(body, settings)
    whole = None
    if body.count(b":") <= _MANY_NAMES:
        # If this fails, an item or the whole batch is wrong, and each item is decoded alone.
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            whole = _BATCH.decode(_text(body)).jobs
    if whole is not None:
        _check_count(len(whole), settings)
        return await in_turns(lambda item: _spec_or_error(item, settings), whole)
    items = _decode(_RAW_BATCH, _RawBatch, body).jobs
    if items is None:
        raise InvalidArgument("jobs", "is missing; it must be a list of jobs")
    _check_count(len(items), settings)
    # Each is decoded now. One may have a hundred thousand labels.
    return await in_turns_by_size(lambda item: _spec_or_error(item, settings), items, _raw_size)


def _raw_size(item: Raw) -> int:
    return effort(bytes(item))


def _count(body: bytes, settings: HttpFaceSettings) -> None:
    """Raise InvalidArgument if the body has too many items, or is not a valid batch."""
    _counting.left = settings.max_batch_jobs
    try:
        _decode(_COUNTED_BATCH, _CountedBatch, body)
    except InvalidArgument:
        if _counting.left >= 0:
            raise
        most = settings.max_batch_jobs
        raise InvalidArgument("jobs", f"has more than {most} items; allowed: 1 to {most}") from None


def _check_count(count: int, settings: HttpFaceSettings) -> None:
    if not 1 <= count <= settings.max_batch_jobs:
        raise InvalidArgument("jobs", f"has {count} items; allowed: 1 to {settings.max_batch_jobs}")


def _spec_or_error(item: JobBody | Raw, settings: HttpFaceSettings) -> JobSpec | JobQueueError:
    try:
        if not isinstance(item, JobBody):
            raw = bytes(item)
            if len(raw) > (most := settings.max_body_bytes):
                raise TooLarge(
                    "payload", f"the job has {len(raw)} bytes; at most {most} are allowed"
                )
            item = _decode_one(raw)
        return item.spec(settings)
    except JobQueueError as error:
        return error


def _text(body: bytes) -> bytes:
    """Return the body. Raise InvalidArgument if it is not UTF-8.

    msgspec does not check the characters of a Raw value.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        where = _position(body, error.start)
        raise InvalidArgument("body", f"is not UTF-8: invalid byte at {where}") from None
    return body


def _decode(decoder: msgspec.json.Decoder[_T], kind: type, body: bytes) -> _T:
    try:
        try:
            return decoder.decode(_text(body))
        except msgspec.ValidationError as error:
            if "got `float`" in str(error):
                with contextlib.suppress(msgspec.DecodeError):  # another error remains
                    return decoder.decode(_with_whole_numbers(body))
            raise _wrong_shape(str(error), kind) from None
    except RecursionError:
        raise InvalidArgument("body", "is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise _malformed(str(error), body) from None


def _with_whole_numbers(body: bytes) -> bytes:
    """Replace numbers like 2.0 by integers, because JSON does not distinguish them.

    The payload does not change.
    """
    fields = _FIELDS.decode(body)
    for name in _WHOLE & fields.keys():
        fields[name] = Raw(_as_whole(bytes(fields[name])))
    for mapping in ("priority_weights", "key_weights"):
        if bytes(fields.get(mapping, b"null")) != b"null":
            weights = _FIELDS.decode(fields[mapping])
            whole = {name: Raw(_as_whole(bytes(weight))) for name, weight in weights.items()}
            fields[mapping] = Raw(msgspec.json.encode(whole))
    return msgspec.json.encode(fields)


def _as_whole(number: bytes) -> bytes:
    try:
        value = float(number)
    except ValueError:
        return number
    return str(int(value)).encode() if value.is_integer() else number


def _malformed(message: str, body: bytes) -> InvalidArgument:
    found = _BYTE.search(message)
    if found is None:  # the body ends too early
        return InvalidArgument("body", f"is not JSON: it ends early, at {_position(body, None)}")
    problem = message[: found.start()].removeprefix("JSON is malformed: ")
    return InvalidArgument("body", f"is not JSON: {problem} at {_position(body, int(found[1]))}")


def _position(body: bytes, offset: int | None) -> str:
    before = body if offset is None else body[:offset]
    line = before.count(b"\n") + 1
    column = len(before) - (before.rfind(b"\n") + 1) + 1
    return f"byte {len(before)} (line {line}, column {column})"


def _wrong_shape(message: str, kind: type) -> InvalidArgument:
    _, is_unknown, name = message.partition(_UNKNOWN)
    if is_unknown:
        name = name.partition("`")[0][:80]
        return InvalidArgument(name, f"unknown field; allowed: {_names_of(kind)}")
    problem, at, place = message.rpartition(_AT)
    if not at:
        return InvalidArgument("body", message[:1].lower() + message[1:])
    problem = problem[:1].lower() + problem[1:]
    path = place.removesuffix("`").removeprefix(_IN_KEYS).removeprefix("$").removeprefix(".")
    in_keys = place.startswith(_IN_KEYS)
    return InvalidArgument(path or "body", f"its keys: {problem}" if in_keys else problem)


@cache
def _names_of(kind: type) -> str:
    return ", ".join(field.encode_name for field in msgspec.structs.fields(kind))


def _task_in(payload: bytes, *, required: bool) -> str:
    """Return the task name in a payload like ``{"task": "image_resize", ...}``, or "".

    A payload may be any JSON value, so a ``task`` that is not text is ignored. With ``required`` a
    ``task`` that is not text is an error.
    """
    if payload[:1] != b"{":
        return ""
    try:
        task = bytes(_TASKED.decode(payload).task)
    except RecursionError:
        raise InvalidArgument("payload", "is nested too deeply") from None
    if task[:1] == b'"':
        return _TEXT.decode(task)
    if task and required:
        raise InvalidArgument("payload.task", "must be the name of a task, as text")
    return ""


def epoch(moment: str | float | None, field: str) -> float | None:
    """Convert a time in a request to epoch seconds. The engine checks the range."""
    if not isinstance(moment, str):
        return moment
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise InvalidArgument(
            field,
            f"{moment[:80]!r} is not a time; allowed: RFC 3339 with an offset"
            " (2030-01-31T12:00:00Z) or epoch seconds",
        )
    return parsed.timestamp()


def query_time(text: str | None, field: str) -> float | None:
    """Convert a time in a URL to epoch seconds.

    A number is text in a URL, and a "+" may arrive as a space.
    """
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return epoch(text.replace(" ", "+"), field)
