"""Request bodies: what they may contain, and how they are read within bounds.

The payload is kept as the very bytes that were sent (``msgspec.Raw``); nothing re-encodes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import ClientDisconnect, Request

from jobqueue.access.callers import current_caller
from jobqueue.api.http.errors import TooLarge, TooSlow
from jobqueue.api.http.settings import HttpSettings
from jobqueue.core.clock import LATEST, MAX_SECONDS
from jobqueue.core.errors import InvalidArgument, JobQueueError, Unavailable
from jobqueue.core.job import DEFAULT_QUEUE, MORE, JobSpec
from jobqueue.core.queue import (
    MAX_CAPACITY,
    MAX_PRIORITY,
    MAX_RETRIES,
    MAX_WEIGHT,
    SETTINGS,
    QueueSpec,
    QueueUpdate,
    SettingsSaid,
)
from jobqueue.core.retry import PROFILES as RETRY_PROFILES
from jobqueue.core.texts import (
    MAX_KEY_LENGTH,
    MAX_LABEL_LENGTH,
    MAX_LABELS,
    MAX_LABELS_BYTES,
    MAX_TYPE_LENGTH,
    QUEUE_NAME,
)
from jobqueue.core.waiting import LONG, in_turns, turn


def _stated(description: str, **schema: Any) -> Meta:
    """What the API's description says of a field. The backend judges it, and says it in words."""
    return Meta(description=description, extra_json_schema=schema)


# Whole numbers: floats would be shown as 315360000.0.
_SPAN = {"exclusiveMinimum": 0, "maximum": int(MAX_SECONDS)}
EPOCH = {"minimum": 0, "maximum": int(LATEST)}
RFC3339 = {"format": "date-time", "pattern": r"^(19[7-9]\d|[2-9]\d{3})-"}
"""Times from 1970 on."""
NAME = f"^{QUEUE_NAME}$"

_Seconds = Annotated[float | None, _stated("seconds", **_SPAN)]
_Retries = Annotated[
    int | None,
    _stated("default for its jobs; null: the server's default", minimum=0, maximum=MAX_RETRIES),
]
_Capacity = Annotated[
    int | None,
    _stated(
        "PENDING jobs at most; 0: unbounded; null: the server's default",
        minimum=0,
        maximum=MAX_CAPACITY,
    ),
]
_Profile = Annotated[
    str | None, _stated("null: the server's default", enum=[*RETRY_PROFILES, None])
]
_Base = Annotated[
    float | None, _stated("seconds before the first retry; at most retry_max", **_SPAN)
]
_Most = Annotated[float | None, _stated("seconds before a retry at most", **_SPAN)]
_Jitter = Annotated[float | None, _stated("random share of the wait, 0 to 1", minimum=0, maximum=1)]
_Kept = Annotated[
    float | None,
    _stated("seconds; 0: for ever; null: as the server says", minimum=0, maximum=MAX_SECONDS),
]
_Weights = Annotated[
    dict[int, int] | None,
    _stated(
        'shares of dispatch by priority, as {"9": 5, "0": 1}; null: strict',
        propertyNames={"pattern": f"^[0-{MAX_PRIORITY}]$"},
        additionalProperties={"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT},
    ),
]


class JobBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A job to submit. Only ``payload`` is required: any JSON value, stored as it was sent."""

    payload: Annotated[
        Raw, _stated("any JSON value but the empty string", **{"not": {"const": ""}})
    ] = msgspec.field(default_factory=Raw)
    queue: Annotated[str, _stated("one that exists", pattern=NAME)] = DEFAULT_QUEUE
    type: Annotated[
        str | None,
        _stated(
            "the task's name; else payload.task, else the queue's default handler",
            maxLength=MAX_TYPE_LENGTH,
        ),
    ] = None
    priority: Annotated[int, _stated("0 to 9, 9 first", minimum=0, maximum=MAX_PRIORITY)] = 0
    max_retries: Annotated[
        int | None, _stated("null: what the queue says", minimum=0, maximum=MAX_RETRIES)
    ] = None
    ttl: Annotated[
        float | None, _stated("seconds in which the job must start, or it is given up", **_SPAN)
    ] = None
    delay: Annotated[
        float | None,
        _stated(
            "seconds to hold the job back, fewer than its ttl; not with run_at",
            minimum=0,
            maximum=int(MAX_SECONDS),
        ),
    ] = None
    run_at: Annotated[
        Annotated[str, Meta(extra_json_schema=RFC3339)]
        | Annotated[float, Meta(extra_json_schema=EPOCH)]
        | Annotated[int, Meta(extra_json_schema=EPOCH)]
        | None,
        Meta(description="RFC 3339 with an offset, or epoch seconds; before its ttl ends"),
    ] = None
    timeout: Annotated[float | None, _stated("seconds one attempt may run", **_SPAN)] = None
    idempotency_key: Annotated[
        str | None,
        _stated("a second submit finds the job again", minLength=1, maxLength=MAX_KEY_LENGTH),
    ] = None
    labels: Annotated[
        dict[str, Annotated[str, Meta(extra_json_schema={"maxLength": MAX_LABEL_LENGTH})]],
        _stated(
            f"at most {MAX_LABELS_BYTES} bytes together",
            maxProperties=MAX_LABELS,
            propertyNames={"minLength": 1, "maxLength": MAX_LABEL_LENGTH},
        ),
    ] = msgspec.field(default_factory=dict)

    def spec(self, settings: HttpSettings) -> JobSpec:
        """The job asked for; what the face itself cannot judge is left to the backend."""
        payload = bytes(self.payload)
        if not payload:
            raise InvalidArgument("payload", 'is missing; it may be any JSON value but ""')
        if payload == b'""':
            raise InvalidArgument("payload", "must not be empty")
        if len(payload) > settings.max_payload_bytes:
            raise TooLarge(
                "payload", f"has {len(payload)} bytes; at most {settings.max_payload_bytes} allowed"
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
            **{name: getattr(self, name) for name in MORE},
        )


class QueueBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A queue to create. Only ``name`` is required."""

    name: Annotated[str, _stated("how jobs name it", pattern=NAME)] = ""
    max_retries: _Retries = None
    ttl: _Seconds = None
    timeout: _Seconds = None
    capacity: _Capacity = None
    retry_profile: _Profile = None
    retry_base: _Base = None
    retry_max: _Most = None
    retry_jitter: _Jitter = None
    priority_weights: _Weights = None
    retention: _Kept = None
    dead_letter_retention: _Kept = None
    paused: bool = False

    def queue(self) -> QueueSpec:
        """The queue asked for."""
        if not self.name:
            raise InvalidArgument("name", "is missing; a queue needs a name")
        return QueueSpec(self.name, paused=self.paused, **_said(self))


class QueuePatch(Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of a queue to change. What is absent stays; null: the server's default."""

    max_retries: _Retries | UnsetType = UNSET
    ttl: _Seconds | UnsetType = UNSET
    timeout: _Seconds | UnsetType = UNSET
    capacity: _Capacity | UnsetType = UNSET
    retry_profile: _Profile | UnsetType = UNSET
    retry_base: _Base | UnsetType = UNSET
    retry_max: _Most | UnsetType = UNSET
    retry_jitter: _Jitter | UnsetType = UNSET
    priority_weights: _Weights | UnsetType = UNSET
    retention: _Kept | UnsetType = UNSET
    dead_letter_retention: _Kept | UnsetType = UNSET

    def update(self) -> QueueUpdate:
        """The change asked for."""
        return QueueUpdate(**_said(self))


def _said(body: QueueBody | QueuePatch) -> SettingsSaid:
    said = {name: getattr(body, name) for name in SETTINGS}
    return cast(SettingsSaid, {name: value for name, value in said.items() if value is not UNSET})


class _Tasked(Struct):
    task: Raw = msgspec.field(default_factory=Raw)


class _RawBatch(Struct, forbid_unknown_fields=True):
    jobs: list[Raw] | None = None


class _Item(Struct):
    """A job of a batch of which nothing is kept but that it was there."""

    def __post_init__(self) -> None:
        _counting.left -= 1
        if _counting.left < 0:
            raise ValueError("too many")  # ends the decoding


class _CountedBatch(Struct):
    jobs: list[_Item] | None = None


class _Counting(threading.local):
    left = 0


_counting = _Counting()


class BatchBody(Struct, forbid_unknown_fields=True):
    """Jobs to submit together; each is accepted or refused on its own."""

    jobs: list[JobBody] | None = None


_JOB = msgspec.json.Decoder(JobBody)
_QUEUE = msgspec.json.Decoder(QueueBody)
_PATCH = msgspec.json.Decoder(QueuePatch)
_BATCH = msgspec.json.Decoder(BatchBody)
_COUNTED_BATCH = msgspec.json.Decoder(_CountedBatch)
_RAW_BATCH = msgspec.json.Decoder(_RawBatch)
_TASKED = msgspec.json.Decoder(_Tasked)
_TEXT = msgspec.json.Decoder(str)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_WHOLE = frozenset({"priority", "max_retries", "capacity"})

_T = TypeVar("_T")
# A batch with more names than this in it is built job by job: each of them is within the size of a
# single one, so that no labels in it are many.
_MANY_NAMES = 300_000
_BYTE = re.compile(r" \(byte (\d+)\)$")
_AT = re.compile(r" - at `(key` in `)?\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*?)`")


def decode_job(body: bytes, settings: HttpSettings) -> JobSpec:
    """Read one job."""
    return _decode(_JOB, JobBody, body).spec(settings)


def decode_queue(body: bytes) -> QueueSpec:
    """Read a queue."""
    return _decode(_QUEUE, QueueBody, body).queue()


def decode_queue_patch(body: bytes) -> QueueUpdate:
    """Read what to change of a queue."""
    return _decode(_PATCH, QueuePatch, body).update()


async def decode_batch(body: bytes, settings: HttpSettings) -> list[JobSpec | JobQueueError]:
    """Read a batch: for each item the job, or what is wrong with that item alone.

    The items are counted before they are built: three bytes are enough for one.
    """
    if len(body) > LONG:
        await turn()
    if body.count(b",") >= settings.max_batch_jobs:
        _count(body, settings)
    whole = None
    if body.count(b":") <= _MANY_NAMES:
        # Else one item is wrong, or the batch itself: look closer.
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            whole = _BATCH.decode(_text(body)).jobs
    if whole is not None:
        _check_count(len(whole), settings)
        return await in_turns(lambda item: _spec_or_error(item, settings), whole)
    items = _decode(_RAW_BATCH, _RawBatch, body).jobs
    if items is None:
        raise InvalidArgument("jobs", "is missing; it must be a list of jobs")
    _check_count(len(items), settings)
    return await in_turns(lambda item: _decode_item(bytes(item), settings), items)


def _count(body: bytes, settings: HttpSettings) -> None:
    """Refuse a batch with too many items; with so many commas, one that is no object, too."""
    _counting.left = settings.max_batch_jobs
    try:
        _decode(_COUNTED_BATCH, _CountedBatch, body)
    except InvalidArgument:
        if _counting.left >= 0:
            raise
        most = settings.max_batch_jobs
        raise InvalidArgument("jobs", f"has more than {most} items; allowed: 1 to {most}") from None


def _check_count(count: int, settings: HttpSettings) -> None:
    if not 1 <= count <= settings.max_batch_jobs:
        raise InvalidArgument("jobs", f"has {count} items; allowed: 1 to {settings.max_batch_jobs}")


def _decode_item(raw: bytes, settings: HttpSettings) -> JobSpec | JobQueueError:
    try:
        if len(raw) > settings.max_body_bytes:
            most = settings.max_body_bytes
            raise TooLarge("payload", f"the job has {len(raw)} bytes; at most {most} allowed")
        return _decode(_JOB, JobBody, raw).spec(settings)
    except JobQueueError as error:
        return error


def _spec_or_error(item: JobBody, settings: HttpSettings) -> JobSpec | JobQueueError:
    try:
        return item.spec(settings)
    except JobQueueError as error:
        return error


def _text(body: bytes) -> bytes:
    """msgspec does not look into a Raw value's characters, so they are checked here."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        where = _position(body, error.start)
        raise InvalidArgument("body", f"is not UTF-8: invalid byte at {where}") from None
    return body


def _decode(decoder: msgspec.json.Decoder[_T], kind: type, body: bytes) -> _T:
    try:
        return decoder.decode(_text(body))
    except msgspec.ValidationError as error:
        if "got `float`" in str(error):
            with contextlib.suppress(msgspec.DecodeError):  # it was not that alone
                return decoder.decode(_with_whole_numbers(body))
        raise _wrong_shape(str(error), kind) from None
    except RecursionError:
        raise InvalidArgument("body", "is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise _malformed(str(error), body) from None


def _with_whole_numbers(body: bytes) -> bytes:
    """In JSON 2.0 is a whole number, too: write it as one, the payload aside."""
    fields = _FIELDS.decode(body)
    for name in _WHOLE & fields.keys():
        fields[name] = Raw(_as_whole(bytes(fields[name])))
    if bytes(fields.get("priority_weights", b"null")) != b"null":
        weights = _FIELDS.decode(fields["priority_weights"])
        whole = {name: Raw(_as_whole(bytes(weight))) for name, weight in weights.items()}
        fields["priority_weights"] = Raw(msgspec.json.encode(whole))
    return msgspec.json.encode(fields)


def _as_whole(number: bytes) -> bytes:
    try:
        value = float(number)
    except ValueError:
        return number
    return str(int(value)).encode() if value.is_integer() else number


def _malformed(message: str, body: bytes) -> InvalidArgument:
    found = _BYTE.search(message)
    if found is None:  # the end came too early
        return InvalidArgument("body", f"is not JSON: it ends early, at {_position(body, None)}")
    what = message[: found.start()].removeprefix("JSON is malformed: ")
    return InvalidArgument("body", f"is not JSON: {what} at {_position(body, int(found[1]))}")


def _position(body: bytes, offset: int | None) -> str:
    before = body if offset is None else body[:offset]
    line = before.count(b"\n") + 1
    column = len(before) - (before.rfind(b"\n") + 1) + 1
    return f"byte {len(before)} (line {line}, column {column})"


def _wrong_shape(message: str, kind: type) -> InvalidArgument:
    unknown = _UNKNOWN.search(message)
    if unknown is not None:
        allowed = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        return InvalidArgument(unknown[1][:80], f"unknown field; allowed: {allowed}")
    at = _AT.search(message)
    if at is None:
        return InvalidArgument("body", message[:1].lower() + message[1:])
    what = message[:1].lower() + message[1 : at.start()]
    return InvalidArgument(at[2] or "body", f"its keys: {what}" if at[1] else what)


def _task_in(payload: bytes, *, required: bool) -> str:
    """The task that a payload like ``{"task": "image_resize", ...}`` names, or nothing.

    A payload is whatever its sender says; only where the view's documents give ``task`` a meaning
    (``required``) must it be a name, if it is there.
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
    """A time from input, in seconds since the epoch; the engine says which ones are allowed."""
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
    """The same in a URL, where epoch seconds are text, and where "+" may have become a space."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return epoch(text.replace(" ", "+"), field)


class Buffers:
    """Bodies that are held in memory, all together within one limit.

    A caller may hold as much as is still free: one caller half of it, two a third each. So there is
    always some left for the next one.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._free = settings.max_buffered_bytes
        self._held: dict[str, int] = {}  # by the caller's account
        self.rate = settings.body_rate
        self.pause = settings.body_pause

    def body(self, request: Request, limit: int) -> _Body:
        """A request's body, for ``async with``: it is counted while it is in use.

        It is refused at the first byte too many, before the rest is buffered.
        """
        return _Body(self, request, limit)

    def hold(self, account: str, size: int) -> None:
        """Count what has come; Unavailable if the caller has more than is left."""
        held = self._held[account] = self._held.get(account, 0) + size
        self._free -= size
        if held > self._free:
            raise Unavailable(
                f"the server holds {held} bytes of requests of {account}, and has less than that"
                " left for others; try again when one has ended"
            )

    def release(self, account: str, size: int) -> None:
        """Give back what was counted."""
        self._free += size
        held = self._held.pop(account, 0) - size
        if held > 0:
            self._held[account] = held


class _Body:
    """One body, as it comes in."""

    __slots__ = ("_account", "_buffers", "_limit", "_request", "_size")

    def __init__(self, buffers: Buffers, request: Request, limit: int) -> None:
        self._buffers = buffers
        self._request = request
        self._limit = limit
        self._account = current_caller().account
        self._size = 0

    async def __aenter__(self) -> bytes:
        for name, value in self._request.scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._limit:
                raise _over(self._limit)
        try:
            chunk, more = await self._next()
            return await self._rest(chunk) if more else chunk
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    async def _rest(self, first: bytes) -> bytes:
        """The whole body, of which something is held now: the rest must not be kept back."""
        chunks = [first]
        more = True
        pause, rate = self._buffers.pause, self._buffers.rate
        time = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(until := time() + pause) as end:
                while more:
                    chunk, more = await self._next()
                    chunks.append(chunk)
                    # What comes buys time, but never more than a pause of it: a fast sender has no
                    # more of it to keep back the last byte.
                    until = min(time() + pause, until + len(chunk) / rate)
                    end.reschedule(until)
        except TimeoutError:
            allowed = f"allowed: {rate} bytes/s or more, and no pause longer than {pause:g} s"
            raise TooSlow("body", f"comes too slowly; {allowed}") from None
        return b"".join(chunks)

    async def _next(self) -> tuple[bytes, bool]:
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        self._size += len(chunk)
        self._buffers.hold(self._account, len(chunk))
        if self._size > self._limit:
            raise _over(self._limit)
        return chunk, message.get("more_body", False)

    def _release(self) -> None:
        self._buffers.release(self._account, self._size)


def _over(limit: int) -> TooLarge:
    return TooLarge("payload", f"the request is too large; at most {limit} bytes allowed")
