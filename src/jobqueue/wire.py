"""Convert records of the core to and from protobuf messages, for calls and the event stream.

A plain field of a record is copied to the message's field of the same name, if the message has such
a field. So a new field needs no code in this module. Nested records are converted by the codecs
that call this module.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from jobqueue.core.errors import Internal, InvalidArgument
from jobqueue.core.job import MORE, JobSpec, WorkerStatus
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import SETTINGS, Kind
from jobqueue.core.schedule import Overlap, Schedule, ScheduleSpec, ScheduleState, Source
from jobqueue.core.unique import UniqueKey
from jobqueue.pb.jq.v1 import schedules_pb2, types_pb2

E = TypeVar("E", bound=enum.Enum)
N = TypeVar("N", bound=int)
R = TypeVar("R")

_NANOS = 1_000_000_000
# The limits of a Timestamp: the years 1 to 9999.
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0
# Fields of records whose names in messages are different.
_NAMES = {
    "ttl": "ttl_seconds",
    "period": "period_seconds",
    "delay": "delay_seconds",
    "timeout": "timeout_seconds",
    "every": "every_seconds",
    "catch_up": "catch_up_seconds",
    "limit": "page_size",
    "key": "idempotency_key",
    "key_owner": "idempotency_key_owner",
}


def stamp(seconds: float | None, field: str = "time") -> Timestamp | None:
    """Convert seconds since the epoch to a Timestamp. ``field`` is the field's name in errors."""
    if seconds is None:
        return None
    if not _EARLIEST <= seconds <= _LATEST:  # false for NaN, too
        raise InvalidArgument(field, "must be a time between the years 1 and 9999")
    whole = math.floor(seconds)
    nanos = round((seconds - whole) * _NANOS)
    if nanos == _NANOS:
        whole, nanos = whole + 1, 0
    return Timestamp(seconds=whole, nanos=nanos)


def seconds(stamped: Timestamp) -> float:
    """Convert a Timestamp to seconds since the epoch."""
    return stamped.seconds + stamped.nanos / _NANOS


class Enumeration(Generic[E, N]):
    """Converts members of an enumeration to the numbers in messages, and back."""

    def __init__(self, noun: str, numbers: Mapping[E, N]) -> None:
        self.noun = noun
        self.to_pb = dict(numbers)
        self.members: dict[int, E] = {number: member for member, number in numbers.items()}

    def from_pb(self, number: int) -> E:
        """Return the member for a number that a server sent. Raises Internal if it is unknown."""
        try:
            return self.members[number]
        except KeyError:
            raise Internal(
                f"the server sent an unknown {self.noun} ({number}); if the server is newer, update"
                " this client"
            ) from None

    def asked(self, numbers: Iterable[int], field: str) -> tuple[E, ...]:
        """Return the members for the numbers in a client's request.

        Raises InvalidArgument if a number is unknown. ``field`` is the field's name in the error.
        """
        try:
            return tuple([self.members[number] for number in numbers])
        except KeyError as error:
            allowed = ", ".join(f"{one.name} ({number})" for number, one in self.members.items())
            raise InvalidArgument(
                field, f"unknown {self.noun} {error}; allowed: {allowed}"
            ) from None


STATES = Enumeration(
    "job state", {one: types_pb2.JobState.Value(f"JOB_STATE_{one.name}") for one in State}
)
REASONS = Enumeration(
    "reason", {one: types_pb2.Reason.Value(f"REASON_{one.name}") for one in Reason}
)
WORKER_STATUSES = Enumeration(
    "worker status",
    {one: types_pb2.WorkerStatus.Value(f"WORKER_STATUS_{one.name}") for one in WorkerStatus},
)
_MAPPINGS = (Kind.WEIGHTS, Kind.KEY_WEIGHTS)
OVERLAPS = Enumeration(
    "overlap policy",
    {one: schedules_pb2.Overlap.Value(f"OVERLAP_{one.name}") for one in Overlap},
)
SOURCES = Enumeration(
    "source of a schedule",
    {one: schedules_pb2.ScheduleSource.Value(f"SCHEDULE_SOURCE_{one.name}") for one in Source},
)
_ENUMERATIONS: Mapping[str, Enumeration[Any, Any]] = {
    "JobState": STATES,
    "Reason": REASONS,
    "WorkerStatus": WORKER_STATUSES,
    "Overlap": OVERLAPS,
    "ScheduleSource": SOURCES,
}


# Records that are messages of their own inside another one.
_RECORDS: Mapping[str, tuple[Any, type[Any]]] = {"Unique": (types_pb2.Unique, UniqueKey)}


class _Shared:
    """Copies the plain fields that a class of records and a type of messages have in common.

    Its lists have one kind of field each, as pairs of the names in the record and in the message.
    """

    def __init__(self, record: type[Any], message: Any, only: Sequence[str] | None) -> None:
        self.plain: list[tuple[str, str]] = []  # always present
        self.optional: list[tuple[str, str]] = []
        self.lists: list[tuple[str, str]] = []
        self.mappings: list[tuple[str, str]] = []
        self.times: list[tuple[str, str]] = []
        self.required_times: list[tuple[str, str]] = []
        self.members: list[tuple[str, str, Enumeration[Any, Any], bool]] = []  # True: may be None
        self.records: list[tuple[str, str, Any, type[Any]]] = []  # in a message of their own
        for one in fields(record):
            wire_name = _NAMES.get(one.name, one.name)
            found = message.DESCRIPTOR.fields_by_name.get(wire_name)
            if found is None:  # the key of a Unique is no idempotency key
                wire_name, found = one.name, message.DESCRIPTOR.fields_by_name.get(one.name)
            if found is None or (only is not None and one.name not in only):
                continue
            pair = (one.name, wire_name)
            if found.enum_type is not None:
                if not found.is_repeated:
                    table = _ENUMERATIONS[found.enum_type.name]
                    self.members.append((*pair, table, "None" in str(one.type)))
            elif found.message_type is Timestamp.DESCRIPTOR:
                required = one.default is MISSING
                (self.required_times if required else self.times).append(pair)
            elif found.message_type is not None:
                if found.message_type.GetOptions().map_entry:
                    self.mappings.append(pair)
                elif (inner := _RECORDS.get(found.message_type.name)) is not None:
                    self.records.append((*pair, *inner))
            elif found.is_repeated:
                self.lists.append(pair)
            else:
                (self.optional if found.has_presence else self.plain).append(pair)
        self.scalars = self.plain + self.optional
        self.collections = self.mappings + self.lists
        self.moments = self.times + self.required_times
        self.optional_alone = not (self.plain or self.collections or self.moments or self.members)

    def write(self, record: Any) -> dict[str, Any]:
        values = {wire_name: getattr(record, name) for name, wire_name in self.scalars}
        for name, wire_name in self.collections:
            if value := getattr(record, name):
                values[wire_name] = value
        for name, wire_name in self.moments:
            if (at := getattr(record, name)) is not None:
                values[wire_name] = stamp(at, name)
        for name, wire_name, table, _ in self.members:
            if (member := getattr(record, name)) is not None:
                values[wire_name] = table.to_pb[member]
        for name, wire_name, kind, _ in self.records:
            if (inner := getattr(record, name)) is not None:
                values[wire_name] = kind(**message_fields(inner, kind))
        return values

    def read(self, message: Any) -> dict[str, Any]:
        values = {name: getattr(message, wire_name) for name, wire_name in self.plain}
        has = message.HasField
        for name, wire_name in self.optional:
            if has(wire_name):
                values[name] = getattr(message, wire_name)
        for name, wire_name in self.mappings:
            values[name] = dict(getattr(message, wire_name))
        for name, wire_name in self.lists:
            values[name] = tuple(getattr(message, wire_name))
        for name, wire_name in self.required_times:
            values[name] = seconds(getattr(message, wire_name))
        for name, wire_name in self.times:
            if has(wire_name):
                values[name] = seconds(getattr(message, wire_name))
        for name, wire_name, table, may_be_none in self.members:
            member = table.members.get(number := getattr(message, wire_name))
            if member is None and (number or not may_be_none):
                member = table.from_pb(number)
            values[name] = member
        for name, wire_name, _, record in self.records:
            if has(wire_name):
                values[name] = record_of(getattr(message, wire_name), record)
        return values


_SHARED: dict[Any, _Shared] = {}


def _shared(
    record: type[Any], message: type[Message], only: Sequence[str] | None = None
) -> _Shared:
    key = (record, message, only)
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = _Shared(record, message, only)
    return found


def message_fields(record: Any, message: type[Message]) -> dict[str, Any]:
    """Return the values of a record's plain fields by their names in a message of this type."""
    return _shared(type(record), message).write(record)


def record_fields(message: Message, record: type[Any]) -> dict[str, Any]:
    """Return the values of a message's fields by their names in records of the class ``record``.

    Fields that are absent in the message are omitted.
    """
    return _shared(record, type(message)).read(message)


def record_of(message: Message, record: type[R]) -> R:
    """Return a record of the class ``record`` with a message's fields."""
    return record(**record_fields(message, record))


def read_spec(message: Message, **more: Any) -> JobSpec:
    """Return the spec of a job from a message; ``more`` has fields that the message lacks."""
    return JobSpec(**record_fields(message, JobSpec), **more)


def more_fields(spec: JobSpec, message: type[Message]) -> dict[str, Any]:
    """Return the spec's fields in ``core.job.MORE`` by their names in a message of this type."""
    return _more(message).write(spec) if spec.says_more else {}


def read_more(message: Message) -> dict[str, Any]:
    """Return a message's fields in ``core.job.MORE`` by their names in ``JobSpec``."""
    shared = _more(type(message))
    if shared.optional_alone:
        has = message.HasField
        return {
            name: getattr(message, wire_name)
            for name, wire_name in shared.optional
            if has(wire_name)
        }
    return shared.read(message)


_MORE: dict[type[Message], _Shared] = {}


def _more(message: type[Message]) -> _Shared:
    found = _MORE.get(message)
    if found is None:
        found = _MORE[message] = _Shared(JobSpec, message, MORE)
    return found


def put_settings(message: types_pb2.Queue, said: Mapping[str, Any]) -> None:
    """Write the given settings of a queue into a message.

    Raises InvalidArgument for a value that the message's field cannot hold.
    """
    for name, value in said.items():
        setting = SETTINGS[name]
        if value is None:
            continue
        try:
            if setting.kind in _MAPPINGS:
                getattr(message, name).update(value)
            else:
                setattr(message, setting.wire_name, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(name, str(error)) from None


def read_settings(message: types_pb2.Queue) -> dict[str, Any]:
    """Return the settings of a queue that are present in a message, by name."""
    said: dict[str, Any] = {}
    for setting in SETTINGS.values():
        if setting.kind in _MAPPINGS:
            if found := getattr(message, setting.name):
                said[setting.name] = dict(found)
        elif message.HasField(setting.wire_name):  # type: ignore[arg-type]  # checked by a test
            said[setting.name] = getattr(message, setting.wire_name)
    return said


def schedule_spec_fields(spec: ScheduleSpec) -> dict[str, Any]:
    """Return the fields of a schedule's definition by their names in its message."""
    return {
        "job": types_pb2.JobSpec(**message_fields(spec.job, types_pb2.JobSpec)),
        **message_fields(spec, schedules_pb2.ScheduleSpec),
    }


def read_schedule_spec(message: schedules_pb2.ScheduleSpec, job: JobSpec) -> ScheduleSpec:
    """Return the definition of a schedule from its message; ``job`` was read from its part."""
    said = record_fields(message, ScheduleSpec)
    said["timezone"] = said["timezone"] or "UTC"
    return ScheduleSpec(job=job, **said)


def schedule_to_pb(schedule: Schedule) -> schedules_pb2.Schedule:
    return schedules_pb2.Schedule(
        spec=schedules_pb2.ScheduleSpec(**schedule_spec_fields(schedule.spec)),
        state=schedule_state_to_pb(schedule.state),
        **message_fields(schedule, schedules_pb2.Schedule),
    )


def schedule_state_to_pb(state: ScheduleState) -> schedules_pb2.ScheduleState:
    return schedules_pb2.ScheduleState(**message_fields(state, schedules_pb2.ScheduleState))


def schedule_from_pb(message: schedules_pb2.Schedule) -> Schedule:
    spec = read_schedule_spec(message.spec, read_spec(message.spec.job))
    return Schedule(
        spec=spec,
        state=ScheduleState(**record_fields(message.state, ScheduleState)),
        **record_fields(message, Schedule),
    )
