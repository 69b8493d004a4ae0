"""The fields of queues as protobuf carries them, for calls and for the event stream alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.queue import SETTINGS, Kind
from jobqueue.pb.jq.v1 import types_pb2


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
