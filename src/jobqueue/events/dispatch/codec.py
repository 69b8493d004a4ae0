"""Hints as bytes, and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from jobqueue.core.dispatch import Hint, HintKind
from jobqueue.events.codec import UnknownRecord
from jobqueue.pb.jq.v1 import dispatch_pb2 as pb

_NUMBERS = {kind: pb.HintKind.Value(f"HINT_KIND_{kind.name}") for kind in HintKind}
_KIND_OF: dict[int, HintKind] = {number: kind for kind, number in _NUMBERS.items()}


def encode(hint: Hint) -> bytes:
    """A hint as it is published."""
    return pb.Hint(
        kind=_NUMBERS[hint.kind],
        event_id=hint.event_id,
        timestamp=hint.at,
        job_id=hint.job_id,
        queue=hint.queue,
        attempt=hint.attempt,
        worker_id=hint.worker_id,
        incarnation=hint.incarnation,
        final=hint.final,
    ).SerializeToString()


def decode(data: bytes | None) -> Hint:
    """A hint from its bytes; UnknownRecord if they are none that this version knows."""
    if data is None:
        raise UnknownRecord("not a hint: a tombstone")
    try:
        read = pb.Hint.FromString(data)
    except DecodeError as error:
        raise UnknownRecord(f"not a hint: {error}") from error
    kind = _KIND_OF.get(read.kind)
    if kind is None:
        raise UnknownRecord(f"a hint of kind {read.kind}, which is unknown here")
    return Hint(
        kind,
        read.event_id,
        read.timestamp,
        read.job_id,
        read.queue,
        read.attempt,
        read.worker_id,
        read.incarnation,
        read.final,
    )
