"""The interceptor that keeps the table of rules."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf import descriptor_pool

from jobqueue.access.budgets import Budgets, Place
from jobqueue.access.callers import Caller, current_caller, enter_call
from jobqueue.access.policy import API_KEY, AUTHORIZATION, Access, Shown, permit
from jobqueue.access.rules import GRPC, RULES, Rule
from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.counting import Refused, counted
from jobqueue.api.grpc.errors import to_status
from jobqueue.core.errors import InvalidArgument, JobQueueError, PermissionDenied

_MESSAGE_TIMEOUT = 10.0  # seconds that the one message of a call may take to come
_MAX_OPEN_BYTES = 1024  # of a message that everybody may send

if TYPE_CHECKING:
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A method behind the door."""

    rule: Rule
    # Decides about the caller itself, and then reads: what is known of the peer is known here.
    deciding: _Handler
    # For a call that was let in before: costs less, but gRPC reads the message before it runs.
    decided: _Handler | None


class Door(grpc.aio.ServerInterceptor):
    """Decides at the beginning of a call or stream, before a message is read.

    What it lets in knows its caller and is counted until it ends. Its messages are built only after
    the items of their lists were counted.
    """

    def __init__(self, access: Access, calls: Calls, budgets: Budgets | None = None) -> None:
        self._access = access
        self._calls = calls
        self._budgets = budgets or Budgets()
        self._kept: dict[str, _Kept] = {}

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """Put the door before a method's handler."""
        method = handler_call_details.method
        kept = self._kept.get(method)
        if kept is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None  # there is no such method, and it is not remembered
            if method not in GRPC:
                return self._without_rule(method, handler)
            kept = self._kept[method] = self._keep(method, handler)
        if kept.decided is None:
            return kept.deciding
        shown = _shown(handler_call_details.invocation_metadata)
        if self._access.asks_certificate(shown):
            return kept.deciding
        started = time.perf_counter()
        try:
            caller = self._admit(method, kept.rule, shown)
            # A caller without a name is known by its address, and that is not known yet.
            place = self._budgets.enter(kept.rule.kind, caller.account if caller.name else "")
        except JobQueueError as error:
            return self._refusing(method, error, started)
        # gRPC runs this and the handler in one task, which ends with the call however that ends.
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(place.leave)
        enter_call(caller)
        return kept.decided

    def _keep(self, method: str, handler: _Handler) -> _Kept:
        rule = RULES[GRPC[method]]
        inner: Any = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        name = method[1:].replace("/", ".")
        request = descriptor_pool.Default().FindMethodByName(name).input_type
        assert handler.request_deserializer is not None
        parse = counted(handler.request_deserializer, request, rule.items)
        if rule.roles is None:
            parse = _short(parse)
        generates = inspect.isasyncgenfunction(inner)

        async def decide(requests: Any, context: Any) -> None:
            place = await self._enter(method, rule, context)
            try:
                given = requests if handler.request_streaming else await self._only(method, context)
                if generates:
                    async for response in inner(given, context):
                        await context.write(response)
                    return
                response = await inner(given, context)
                if not handler.response_streaming:
                    await context.write(response)
            finally:
                place.leave()

        async def call(request: Any, context: Any) -> Any:
            if isinstance(request, Refused):
                await self._abort(method, request.error, time.perf_counter(), context)
            caller = current_caller()
            enter_call(Caller(caller.name, caller.roles, _address(context.peer())))
            return await inner(request, context)

        deciding: _Handler = grpc.stream_stream_rpc_method_handler(
            decide, parse, handler.response_serializer
        )
        if handler.unary_unary is None or rule.roles is None:
            return _Kept(rule, deciding, None)
        return _Kept(
            rule,
            deciding,
            grpc.unary_unary_rpc_method_handler(call, parse, handler.response_serializer),
        )

    async def _enter(self, method: str, rule: Rule, context: Any) -> Place:
        """Decide with all that is known of the peer."""
        started = time.perf_counter()
        shown = _shown(
            context.invocation_metadata(),
            certificate_name(context.auth_context()),
            _address(context.peer()),
        )
        try:
            caller = self._admit(method, rule, shown)
            place = self._budgets.enter(rule.kind, caller.account)
        except JobQueueError as error:
            await self._abort(method, error, started, context)
        enter_call(caller)
        return place

    def _admit(self, method: str, rule: Rule, shown: Shown) -> Caller:
        if rule.roles is None:
            return Caller("", frozenset(), shown.address)
        caller = self._access.identify(shown)
        if self._access.required:
            permit(caller, rule.roles, method.rpartition("/")[2])
        return caller

    async def _only(self, method: str, context: Any) -> Any:
        """The one message of a call that has one."""
        try:
            async with asyncio.timeout(_MESSAGE_TIMEOUT):
                request = await context.read()
        except TimeoutError:
            late = f"did not come within {_MESSAGE_TIMEOUT:g} s"
            request = Refused(InvalidArgument("request", late))
        if request is grpc.aio.EOF:
            request = Refused(InvalidArgument("request", "is missing"))
        if isinstance(request, Refused):
            await self._abort(method, request.error, time.perf_counter(), context)
        return request

    async def _abort(
        self, method: str, error: JobQueueError, started: float, context: Any
    ) -> NoReturn:
        action = GRPC.get(method, "")
        await self._access.refusals.note(error, _address(context.peer()), action, "grpc")
        code, text, metadata = to_status(error)
        self._calls.ended(method, code.name, started)
        await context.abort(code, text, metadata)
        raise AssertionError("abort raises")

    def _refusing(self, method: str, error: JobQueueError, started: float) -> _Handler:
        """A handler that reads no message, since it takes any number of them."""

        async def refuse(requests: Any, context: Any) -> None:
            await self._abort(method, error, started, context)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _without_rule(self, method: str, handler: _Handler) -> _Handler:
        if not self._access.required:
            return handler
        error = PermissionDenied(f"{method.rpartition('/')[2]} is not for callers of this server")
        return self._refusing(method, error, time.perf_counter())


def _short(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A parser for what everybody may send: nobody needs more than a name there."""

    def parse_short(data: bytes) -> Any:
        if len(data) > _MAX_OPEN_BYTES:
            allowed = f"at most {_MAX_OPEN_BYTES} bytes are allowed"
            return Refused(InvalidArgument("request", allowed))
        return parse(data)

    return parse_short


def _shown(
    metadata: Iterable[tuple[str, str | bytes]] | None, certificate: str = "", address: str = ""
) -> Shown:
    authorization: list[str] = []
    api_key: list[str] = []
    for name, value in metadata or ():
        if name in (AUTHORIZATION, API_KEY):
            text = value if isinstance(value, str) else value.decode("latin-1")
            (authorization if name == AUTHORIZATION else api_key).append(text)
    return Shown(tuple(authorization), tuple(api_key), certificate, address)


def certificate_name(auth: dict[str, Iterable[bytes]]) -> str:
    """The common name, or else the first alternative name."""
    for field in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth.get(field, ()):
            if value:
                return value.decode(errors="replace")
    return ""


@lru_cache(1024)
def _address(peer: str) -> str:
    """``ipv4:127.0.0.1:40000`` without scheme and port."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]") or peer
