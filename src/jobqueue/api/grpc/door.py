"""The interceptor that keeps the table of rules."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
import grpc.aio

from jobqueue.access.callers import Caller, enter_call
from jobqueue.access.policy import API_KEY, AUTHORIZATION, Access, Shown, permit
from jobqueue.access.rules import grpc_rule
from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.errors import to_status
from jobqueue.core.errors import JobQueueError

if TYPE_CHECKING:
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Door(grpc.aio.ServerInterceptor):
    """Decides at the beginning of a call or stream; what it lets in knows its caller."""

    def __init__(self, access: Access, calls: Calls) -> None:
        self._access = access
        self._calls = calls
        self._kept: dict[str, _Handler] = {}

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """Put the door before a method's handler, once for each method."""
        method = handler_call_details.method
        if grpc_rule(method).roles is None:
            return await continuation(handler_call_details)
        kept = self._kept.get(method)
        if kept is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None  # there is no such method, and it is not remembered
            kept = self._kept[method] = self._keep(method, handler)
        return kept

    def _keep(self, method: str, handler: _Handler) -> _Handler:
        kind = next(kind for kind in _KINDS if getattr(handler, kind) is not None)
        inner: Any = getattr(handler, kind)

        async def call(request: Any, context: Any) -> Any:
            await self._enter(method, context)
            return await inner(request, context)

        async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._enter(method, context)
            async for response in inner(request, context):
                yield response

        make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
        kept: _Handler = make(
            generate if inspect.isasyncgenfunction(inner) else call,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return kept

    async def _enter(self, method: str, context: Any) -> None:
        started = time.perf_counter()
        try:
            enter_call(self._admit(method, context))
        except JobQueueError as error:
            code, text, metadata = to_status(error)
            self._calls.ended(method, code.name, started)
            await context.abort(code, text, metadata)

    def _admit(self, method: str, context: Any) -> Caller:
        caller = self._access.identify(_shown(context))
        permit(caller, grpc_rule(method).roles, method.rpartition("/")[2])
        return caller


def _shown(context: Any) -> Shown:
    authorization, api_key = [], []
    for name, value in context.invocation_metadata() or ():
        text = value if isinstance(value, str) else value.decode("latin-1")
        if name == AUTHORIZATION:
            authorization.append(text)
        elif name == API_KEY:
            api_key.append(text)
    return Shown(
        tuple(authorization),
        tuple(api_key),
        certificate=certificate_name(context.auth_context()),
        address=_address(context.peer()),
    )


def certificate_name(auth: dict[str, Iterable[bytes]]) -> str:
    """The common name, or else the first alternative name."""
    for field in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth.get(field, ()):
            if value:
                return value.decode(errors="replace")
    return ""


def _address(peer: str) -> str:
    """``ipv4:127.0.0.1:40000`` without scheme and port."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]") or peer
