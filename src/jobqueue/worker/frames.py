"""What a worker and its process say to each other: length-prefixed JSON over a socket pair."""

from __future__ import annotations

import socket
import struct

import msgspec

MAX_FRAME = 256 * 1024 * 1024
PREFIX = struct.Struct(">I")


class Run(msgspec.Struct, tag="run", tag_field="is", omit_defaults=True):
    """To the process: execute this job. The handler is found by import, or by its script's path."""

    lease: int
    module: str
    qualname: str
    script: str | None
    path: list[str]
    job_id: str
    queue: str
    type: str
    attempt: int
    retry_count: int
    max_retries: int
    labels: dict[str, str]
    payload: bytes
    max_result_bytes: int
    timeout: float | None = None


class Cancel(msgspec.Struct, tag="cancel", tag_field="is"):
    """To the process: raise the flag of this job."""

    lease: int


class Ready(msgspec.Struct, tag="ready", tag_field="is"):
    """From the process: it is up."""


class Advance(msgspec.Struct, tag="advance", tag_field="is"):
    """From the process: how far the handler has come."""

    lease: int
    value: float | None
    text: str


class Waiting(msgspec.Struct, tag="waiting", tag_field="is"):
    """From the process: the handler begins, or has stopped, to wait for a job of a queue."""

    queue: str | None
    begins: bool


class Done(msgspec.Struct, tag="done", tag_field="is"):
    """From the process: the handler returned."""

    result: bytes | None
    cancel_noticed: bool = False


class Failed(msgspec.Struct, tag="failed", tag_field="is"):
    """From the process: the handler raised, or could not be called."""

    error: str
    kinds: list[str] = []  # of the error that it raised; none: the result was too large
    retry_after: float | None = None


ToChild = Run | Cancel
FromChild = Ready | Advance | Waiting | Done | Failed

_encoder = msgspec.json.Encoder()
_to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)
_from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild)


def frame(message: ToChild | FromChild) -> bytes:
    """A message with its length before it."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes is more than the {MAX_FRAME} allowed")
    return PREFIX.pack(len(body)) + body


def read_to_child(body: bytes) -> ToChild:
    """What the worker says."""
    return _to_child.decode(body)


def read_from_child(body: bytes) -> FromChild:
    """What the process says."""
    return _from_child.decode(body)


def body_length(prefix: bytes) -> int:
    """The length a prefix announces."""
    length: int = PREFIX.unpack(prefix)[0]
    if length > MAX_FRAME:
        raise ValueError(f"a message of {length} bytes is more than the {MAX_FRAME} allowed")
    return length


def receive(sock: socket.socket) -> bytes | None:
    """Read one message's body, blocking; None when the other side is gone."""
    prefix = _receive_exactly(sock, PREFIX.size)
    return None if prefix is None else _receive_exactly(sock, body_length(prefix))


def _receive_exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            chunk = sock.recv(min(count - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)
