"""The fields of jobs and queues as protobuf carries them, for calls and the event stream alike.

A field of a job stands in several messages; each carries what it has a place for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MORE, JobSpec
from jobqueue.core.queue import SETTINGS, Kind
from jobqueue.pb.jq.v1 import types_pb2

_NANOS = 1_000_000_000
# What a Timestamp can hold: the years 1 to 9999.
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0
_NAMES = {
    "ttl": "ttl_seconds",
    "delay": "delay_seconds",
    "timeout": "timeout_seconds",
    "key": "idempotency_key",
    "key_owner": "idempotency_key_owner",
}
"""Fields of a job that messages call otherwise."""


def stamp(seconds: float | None, field: str = "time") -> Timestamp | None:
    """Epoch seconds as a Timestamp."""
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
    """A Timestamp as epoch seconds."""
    return stamped.seconds + stamped.nanos / _NANOS


class _Carried:
    """What one type of message carries of a job: pairs of the field and its name there."""

    def __init__(self, message: Any, names: Iterable[str]) -> None:
        self.plain: list[tuple[str, str]] = []  # always there
        self.optional: list[tuple[str, str]] = []
        self.lists: list[tuple[str, str]] = []
        self.mappings: list[tuple[str, str]] = []
        self.times: list[tuple[str, str]] = []
        for name in names:
            wire_name = _NAMES.get(name, name)
            found = message.DESCRIPTOR.fields_by_name.get(wire_name)
            if found is not None:
                self._group(found).append((name, wire_name))
        self.scalars = self.plain + self.optional

    def _group(self, found: Any) -> list[tuple[str, str]]:
        if found.message_type is Timestamp.DESCRIPTOR:
            return self.times
        if found.message_type is not None:
            return self.mappings
        if found.is_repeated:
            return self.lists
        return self.optional if found.has_presence else self.plain


class _Carrying(dict[Any, _Carried]):
    """What messages carry of some fields, by the type of message."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def __missing__(self, message: Any) -> _Carried:
        made = self[message] = _Carried(message, self._names)
        return made


_ALL = _Carrying(one.name for one in fields(JobSpec))
_MORE = _Carrying(MORE)


def spec_fields(spec: JobSpec, message: type[Message]) -> dict[str, Any]:
    """What a message of that type carries of a job, by name."""
    return _said(spec, _ALL[message])


def more_fields(spec: JobSpec, message: type[Message]) -> dict[str, Any]:
    """What it carries of ``MORE``, for those who write the other fields one by one."""
    return _said(spec, _MORE[message]) if MORE else {}


def _said(spec: JobSpec, carried: _Carried) -> dict[str, Any]:
    said = {wire_name: getattr(spec, name) for name, wire_name in carried.scalars}
    for name, wire_name in carried.mappings + carried.lists:
        if value := getattr(spec, name):
            said[wire_name] = value
    for name, wire_name in carried.times:
        if (at := getattr(spec, name)) is not None:
            said[wire_name] = stamp(at, name)
    return said


def read_spec(message: Message, **more: Any) -> JobSpec:
    """What a message says of a job, and what is known beside it."""
    return JobSpec(**_heard(message, _ALL[type(message)]), **more)


def read_more(message: Message) -> dict[str, Any]:
    """What it says of ``MORE``, for those who read the other fields one by one."""
    return _heard(message, _MORE[type(message)]) if MORE else {}


def _heard(message: Message, carried: _Carried) -> dict[str, Any]:
    more: dict[str, Any] = {}
    for name, wire_name in carried.plain:
        more[name] = getattr(message, wire_name)
    has = message.HasField
    for name, wire_name in carried.optional:
        if has(wire_name):
            more[name] = getattr(message, wire_name)
    for name, wire_name in carried.mappings:
        more[name] = dict(getattr(message, wire_name))
    for name, wire_name in carried.lists:
        more[name] = tuple(getattr(message, wire_name))
    for name, wire_name in carried.times:
        if has(wire_name):
            more[name] = seconds(getattr(message, wire_name))
    return more


def put_settings(message: types_pb2.Queue, said: Mapping[str, Any]) -> None:
    """Write settings of a queue; raises InvalidArgument for what the wire cannot carry."""
    for name, value in said.items():
        setting = SETTINGS[name]
        if value is None:
            continue
        try:
            if setting.kind is Kind.WEIGHTS:
                message.priority_weights.update(value)
            else:
                setattr(message, setting.wire_name, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument(name, str(error)) from None


def read_settings(message: types_pb2.Queue) -> dict[str, Any]:
    """The settings that a message says."""
    said: dict[str, Any] = {}
    for setting in SETTINGS.values():
        if setting.kind is Kind.WEIGHTS:
            if message.priority_weights:
                said[setting.name] = dict(message.priority_weights)
        elif message.HasField(setting.wire_name):  # type: ignore[arg-type]  # checked by a test
            said[setting.name] = getattr(message, setting.wire_name)
    return said
