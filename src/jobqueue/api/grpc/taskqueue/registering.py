"""How a servicer is added to a server.

The generated functions do the same, but let gRPC answer what cannot be parsed: with UNKNOWN, and
the text of an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass


class Malformed:
    """A request that is not taken; ``why`` completes "request: "."""

    def __init__(self, why: str) -> None:
        self.why = why


class Servicer(Protocol):
    """Has a method for each one of its service."""

    @property
    def DESCRIPTOR(self) -> ServiceDescriptor:
        """The service."""
        ...


def add_to_server(
    servicer: Servicer, server: grpc.aio.Server, *, max_bytes: int | None = None
) -> None:
    """Every method of its service; ``max_bytes`` of a request are taken, None: what gRPC takes."""
    service = servicer.DESCRIPTOR
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=_parser(GetMessageClass(method.input_type), max_bytes),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service.full_name, handlers),)
    )


def _parser(
    message: type[Message], max_bytes: int | None
) -> Callable[[bytes], Message | Malformed]:
    def parse(data: bytes) -> Message | Malformed:
        if max_bytes is not None and len(data) > max_bytes:
            return Malformed(f"has {len(data)} bytes, at most {max_bytes} are allowed")
        try:
            return message.FromString(data)
        except DecodeError:
            return Malformed(f"is not a {message.DESCRIPTOR.full_name}")

    return parse
