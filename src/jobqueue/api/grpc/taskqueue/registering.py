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
    """A request whose bytes are no message of its type."""

    def __init__(self, expected: str) -> None:
        self.expected = expected


class Servicer(Protocol):
    """Has a method for each one of its service."""

    @property
    def DESCRIPTOR(self) -> ServiceDescriptor:
        """The service."""
        ...


def add_to_server(servicer: Servicer, server: grpc.aio.Server) -> None:
    """Every method of its service."""
    service = servicer.DESCRIPTOR
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=_parser(GetMessageClass(method.input_type)),
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service.full_name, handlers),)
    )


def _parser(message: type[Message]) -> Callable[[bytes], Message | Malformed]:
    def parse(data: bytes) -> Message | Malformed:
        try:
            return message.FromString(data)
        except DecodeError:
            return Malformed(message.DESCRIPTOR.full_name)

    return parse
