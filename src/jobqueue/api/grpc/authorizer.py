"""Apply the table of rules (``access/rules.py``) to every gRPC call before its method runs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf import descriptor_pool

from jobqueue.access.budgets import CONNECTION, Budgets, MessageBytes, Place, Room
from jobqueue.access.callers import EVERY_ROLE, Caller, Role, enter_call
from jobqueue.access.policy import API_KEY, AUTHORIZATION, Access, Shown, permit
from jobqueue.access.rules import GRPC, MAX_HEADERS, RULES, BudgetKind, Rule
from jobqueue.access.tls import has_nul
from jobqueue.api.grpc.calls import Calls, server_stopping
from jobqueue.api.grpc.channel import MIN_RECEIVE_BYTES
from jobqueue.api.grpc.counting import RefusedRequest, counted
from jobqueue.api.grpc.errors import abort, to_status
from jobqueue.api.grpc.messages import Duplex, TimedReader, results_weight, weight
from jobqueue.core.errors import InvalidArgument, JobQueueError, PermissionDenied, without_trace
from jobqueue.core.waiting import LONG, answer_room, turn

CERTIFICATE = "x509_pem_cert"  # gRPC's name for the client's certificate in its auth context

_MAX_OPEN_BYTES = 1024  # the largest message that an unauthenticated caller may send
_OPEN_MESSAGES = 4  # most messages that one address may send at once without authentication
# A stopping server still accepts these calls, so that workers that stop too can finish their jobs.
_UNTIL_THE_END = {
    "server.probe",
    "server.watch_health",
    "worker.fetch",
    "worker.report",
    "worker.heartbeat",
    "worker.deregister",
}

_Metadata = Iterable[tuple[str, str | bytes]] | None
# The metadata of the call that the current task serves. gRPC's context would build it again.
_metadata: ContextVar[_Metadata] = ContextVar("jobqueue_metadata", default=None)

if TYPE_CHECKING:
    _Handler = grpc.RpcMethodHandler[Any, Any]


class GrpcAuthorizer(grpc.GenericRpcHandler):
    """Admits or refuses a call or stream when it begins, before the server reads a message.

    An admitted call has a caller, and the budgets count the call until it ends. The server counts
    the items of a request's lists before it parses the request.

    gRPC gets its method handlers from this class, because an interceptor would be slower.
    """

    def __init__(
        self,
        access: Access,
        calls: Calls,
        budgets: Budgets | None = None,
        *,
        max_message_bytes: int = MIN_RECEIVE_BYTES,
    ) -> None:
        self._access = access
        self._required = access.required
        self._calls = calls
        self._budgets = budgets or Budgets()
        self._requests = MessageBytes(max_message_bytes)
        self._answers = MessageBytes(max_message_bytes)
        # Messages of unauthenticated callers have their own memory budget.
        self._open = MessageBytes(max_message_bytes, per_caller=_OPEN_MESSAGES)
        self._reader = TimedReader(self._requests)
        self._open_reader = TimedReader(self._open, is_open=True)
        self._server: grpc.aio.Server | None = None
        self._services: list[grpc.GenericRpcHandler] = []
        self._handlers: dict[str, _Handler] = {}

    def before(self, server: grpc.aio.Server) -> grpc.aio.Server:
        """Register this authorizer with a gRPC server. Add the servicers to the returned object."""
        grpcs_log = logging.getLogger("grpc._cython.cygrpc")
        grpcs_log.addFilter(_is_no_answer_lost)
        grpcs_log.addFilter(_is_no_odd_metadata)
        server.add_generic_rpc_handlers((self,))
        self._server = server
        return cast(grpc.aio.Server, self)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add a service's methods. Generated code calls this like the method of a gRPC server."""
        self._services += handlers

    def add_registered_method_handlers(self, service: str, methods: Iterable[str]) -> None:
        """Register a service's method names. The server gets the handlers from ``self.service``."""
        assert self._server is not None
        names: dict[str, Any] = dict.fromkeys(methods)
        self._server.add_registered_method_handlers(service, names)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        method = handler_call_details.method
        authorized = self._handlers.get(method)
        if authorized is None:
            found = (service.service(handler_call_details) for service in self._services)
            handler = next((one for one in found if one is not None), None)
            if handler is None:
                return None  # the method does not exist; its name is not stored
            if method not in GRPC:
                if not self._required:
                    return handler
                short = method.rpartition("/")[2]
                return self._refusing(
                    method, PermissionDenied(f"this server does not allow {short} to any caller")
                )
            authorized = self._handlers[method] = self._authorized(method, handler)
        shown = handler_call_details.invocation_metadata
        if len(shown) > MAX_HEADERS:
            error = InvalidArgument("metadata", f"at most {MAX_HEADERS} entries are allowed")
            return self._refusing(method, error, grpc.StatusCode.RESOURCE_EXHAUSTED)
        if self._required:
            _metadata.set(shown)
        return authorized

    def _authorized(self, method: str, handler: _Handler) -> _Handler:
        rule = RULES[GRPC[method]]
        name = method[1:].replace("/", ".")
        request = descriptor_pool.Default().FindMethodByName(name).input_type
        assert handler.request_deserializer is not None
        parse = counted(handler.request_deserializer, request, rule.items)
        if rule.roles is None:
            parse = _short(parse)
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._call(method, rule, handler, parse))
        inner: Any = handler.unary_stream or handler.stream_unary or handler.stream_stream
        generates = inspect.isasyncgenfunction(inner)
        serialize: Any = handler.response_serializer
        both_ways = handler.stream_stream is not None and not generates

        async def decide(requests: Any, context: Any) -> None:
            place = await self._admit_stream(method, rule, context)
            try:
                if both_ways:
                    stream: Duplex[Any, Any] = Duplex(
                        context, parse, serialize, self._requests, self._answers, place.account
                    )
                    with contextlib.closing(stream):
                        await inner(stream, context)
                    return
                given = requests
                if not handler.request_streaming:
                    given = await self._read_one(method, rule, place.account, context)
                if generates:
                    async for response in inner(given, context):
                        await context.write(response)
                    return
                response = await inner(given, context)
                if not handler.response_streaming:
                    await context.write(response)
            finally:
                place.leave()

        if both_ways:  # a Duplex parses and serializes the messages
            return grpc.stream_stream_rpc_method_handler(decide)
        return grpc.stream_stream_rpc_method_handler(decide, parse, serialize)

    def _call(
        self, method: str, rule: Rule, handler: _Handler, parse: Callable[[bytes], Any]
    ) -> Callable[[Any, Any], Awaitable[bytes]]:
        """Wrap a method with one request and one answer so that gRPC runs it like a stream.

        The wrapper checks the call before it reads the request, and knows both messages' sizes.
        """
        inner: Any = handler.unary_unary
        serialize: Any = handler.response_serializer
        counted_as = self._budgets.of(rule.kind)
        is_open = rule.roles is None
        requests, reader = self._room_for(rule)
        answers = self._answers
        largest = requests.largest
        # A call that only reads reserves memory for its answer first. A long poll reserves it when
        # its wait is over. A fetch of jobs reserves it before the jobs are claimed.
        polls = rule.kind is BudgetKind.WAIT
        answers_at_once = rule.reads and not polls

        async def call(messages: Any, context: Any) -> bytes:
            try:
                caller = self._admit(method, rule, context)
                # Programs on one machine share one address, so each connection has its own count.
                account = (
                    caller.account if caller.name or is_open else f"{CONNECTION}{context.peer()}"
                )
                counted_as.enter(account)
            except JobQueueError as error:
                await self._abort(method, error, time.perf_counter(), context)
            asked = 0
            room = Room(answers, account)

            def ended(_: object) -> None:
                counted_as.leave(account)
                if asked:
                    requests.change(account, asked, 0)
                room.close()

            # gRPC's task ends when the answer is sent, or when the call ends in another way. A
            # callback of the context would keep the call in memory until a garbage collection.
            task = asyncio.current_task()
            assert task is not None
            task.add_done_callback(ended)
            del task
            enter_call(caller)
            try:
                if not requests.take(account):
                    await requests.wait(account)
                asked = largest
                data = await reader.read(context)
                asked = requests.change(account, asked, weight(len(data)))
                if len(data) > LONG:
                    await turn()
                request = parse(data)
                del data
                if isinstance(request, RefusedRequest):
                    raise request.error
                if answers_at_once:
                    await room.take()
                elif rule.results and (most := results_weight(len(getattr(request, rule.results)))):
                    await room.take()
                    room.change(most)
                else:
                    answers.check(account, 0, 0)
                    if polls:
                        answer_room.set(room)
            except JobQueueError as error:
                await self._abort(method, error, time.perf_counter(), context)
            made = inner(request, context)
            del request  # gRPC keeps this frame in memory with the error of a refused call
            answer: bytes = serialize(await made)
            size = weight(len(answer))
            if rule.reads and size > room.taken:
                try:
                    answers.check(account, room.taken, size)
                except JobQueueError as error:
                    del answer  # gRPC keeps this frame in memory, too
                    await self._abort(method, error, time.perf_counter(), context)
            room.change(size)
            return answer

        return call

    async def _admit_stream(self, method: str, rule: Rule, context: Any) -> Place:
        started = time.perf_counter()
        try:
            caller = self._admit(method, rule, context)
            place = self._budgets.enter(rule.kind, caller.account)
        except JobQueueError as error:
            await self._abort(method, error, started, context)
        enter_call(caller)
        return place

    def _admit(self, method: str, rule: Rule, context: Any) -> Caller:
        """Identify the caller, and check that the rule allows the call."""
        if self._calls.stopping and GRPC[method] not in _UNTIL_THE_END:
            raise server_stopping()
        if rule.roles is None:
            return _anybody(context.peer(), frozenset())
        if not self._required:
            return _anybody(context.peer(), EVERY_ROLE)
        access = self._access
        shown = _shown(_metadata.get(), address_of(context.peer()))
        if access.asks_certificate(shown):
            shown = replace(shown, certificate=certificate_name(context.auth_context()))
        caller = access.identify(shown)
        permit(caller, rule.roles, method.rpartition("/")[2])
        return caller

    async def _read_one(self, method: str, rule: Rule, account: str, context: Any) -> Any:
        """Read the only request message of a call that has a stream of answers."""
        room, reader = self._room_for(rule)
        try:
            if not room.take(account):
                await room.wait(account)
            try:
                request = await reader.read(context)
            finally:
                room.change(account, room.largest, 0)  # the requests of such calls are short
            if isinstance(request, RefusedRequest):
                raise request.error
        except JobQueueError as error:
            await self._abort(method, error, time.perf_counter(), context)
        return request

    def _room_for(self, rule: Rule) -> tuple[MessageBytes, TimedReader]:
        if rule.roles is None:
            return self._open, self._open_reader
        return self._requests, self._reader

    async def _abort(
        self,
        method: str,
        error: JobQueueError,
        started: float,
        context: Any,
        status: grpc.StatusCode | None = None,
    ) -> NoReturn:
        action = GRPC.get(method, "")
        await self._access.refusals.note(error, address_of(context.peer()), action, "grpc")
        code, text, metadata = to_status(without_trace(error))
        code = status or code
        self._calls.ended(method, code.name, started)
        await abort(context, code, text, metadata)

    def _refusing(
        self, method: str, error: JobQueueError, status: grpc.StatusCode | None = None
    ) -> _Handler:
        """Return a handler that refuses every call with ``error``, without reading a message."""
        started = time.perf_counter()

        async def refuse(requests: Any, context: Any) -> None:
            await self._abort(method, error, started, context, status)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _is_no_answer_lost(record: logging.LogRecord) -> bool:
    """Return False for gRPC's log line about a caller that left while its answer was sent.

    gRPC logs that case as an error. It is not an error, and callers could fill the log with it.
    """
    found = record.getMessage().partition("ExecuteBatchError raised in core by servicer method [")
    return found[2].rstrip("]") not in GRPC


def _is_no_odd_metadata(record: logging.LogRecord) -> bool:
    """Return False for gRPC's log lines about metadata that is not UTF-8.

    The lines show the metadata, which may be a key, and callers could fill the log with them.
    """
    return not record.getMessage().startswith("Invalid encoding on ")


def _short(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Wrap ``parse`` to refuse large messages: unauthenticated callers need only send a name."""

    def parse_short(data: bytes) -> Any:
        if len(data) > _MAX_OPEN_BYTES:
            allowed = f"at most {_MAX_OPEN_BYTES} bytes are allowed"
            return RefusedRequest(InvalidArgument("request", allowed))
        return parse(data)

    return parse_short


def _shown(metadata: _Metadata, address: str) -> Shown:
    authorization: list[str] = []
    api_key: list[str] = []
    for name, value in metadata or ():
        if name in (AUTHORIZATION, API_KEY):
            text = value if isinstance(value, str) else value.decode("latin-1")
            (authorization if name == AUTHORIZATION else api_key).append(text)
    return Shown(tuple(authorization), tuple(api_key), address=address)


def certificate_name(auth: dict[str, Iterable[bytes]]) -> str:
    """Return the client certificate's common name, or its first DNS name.

    Return an empty name without a certificate, or if the certificate contains a NUL in a name.
    """
    # gRPC cuts the names in ``auth`` at the first NUL; the certificate has the whole names.
    certificates = list(auth.get(CERTIFICATE, ()))
    if not certificates or any(map(has_nul, certificates)):
        return ""
    for field in ("x509_common_name", "peer_dns"):
        for value in auth.get(field, ()):
            if value:
                return value.decode(errors="replace")
    return ""


@lru_cache(1024)
def _anybody(peer: str, roles: frozenset[Role]) -> Caller:
    """Return the caller of a method or server that needs no credentials."""
    return Caller("", roles, address_of(peer))


@lru_cache(1024)
def address_of(peer: str) -> str:
    """Return the address of a gRPC peer: ``127.0.0.1`` for ``ipv4:127.0.0.1:40000``."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]") or peer
