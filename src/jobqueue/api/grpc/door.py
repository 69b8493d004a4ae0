"""What keeps the table of rules before every method."""

from __future__ import annotations

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

from jobqueue.access.budgets import Budgets, MessageBytes, Place, Room
from jobqueue.access.callers import EVERY_ROLE, Caller, Role, enter_call
from jobqueue.access.certificates import has_nul
from jobqueue.access.policy import API_KEY, AUTHORIZATION, Access, Shown, permit
from jobqueue.access.rules import GRPC, RULES, Kind, Rule
from jobqueue.api.grpc.arrivals import Arrivals
from jobqueue.api.grpc.calls import Calls, server_stopping
from jobqueue.api.grpc.channel import MIN_RECEIVE_BYTES
from jobqueue.api.grpc.counting import Refused, counted
from jobqueue.api.grpc.duplex import Duplex, results_weight, weight
from jobqueue.api.grpc.errors import to_status
from jobqueue.core.errors import InvalidArgument, JobQueueError, PermissionDenied
from jobqueue.core.waiting import LONG, answer_room, turn

CERTIFICATE = "x509_pem_cert"  # in what gRPC knows of a connection: the client's certificate

_MAX_OPEN_BYTES = 1024  # of a message that everybody may send
_OPEN_MESSAGES = 4  # such messages of one address that may be on their way
# What a server that stops still answers: workers that stop as well end their jobs here.
_UNTIL_THE_END = {
    "server.probe",
    "server.watch_health",
    "worker.fetch",
    "worker.report",
    "worker.heartbeat",
    "worker.deregister",
}

_Metadata = Iterable[tuple[str, str | bytes]] | None
# Of the call that a task serves: a context would build it anew.
_metadata: ContextVar[_Metadata] = ContextVar("jobqueue_metadata", default=None)

if TYPE_CHECKING:
    _Handler = grpc.RpcMethodHandler[Any, Any]


class Door(grpc.GenericRpcHandler):
    """Decides at the beginning of a call or stream, before a message is read.

    What it lets in knows its caller and is counted until it ends. Its messages are built only after
    the items of their lists were counted.

    It finds the methods for gRPC: an interceptor could decide as well, but costs more.
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
        # Of those who are not known: what they send takes no room from the others.
        self._open = MessageBytes(max_message_bytes, per_caller=_OPEN_MESSAGES)
        self._arrivals = Arrivals(self._requests)
        self._open_arrivals = Arrivals(self._open, is_open=True)
        self._behind: list[grpc.GenericRpcHandler] = []
        self._kept: dict[str, _Handler] = {}

    def before(self, server: grpc.aio.Server) -> grpc.aio.Server:
        """Stand before a server's methods: add them to what this returns."""
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_answer_lost)
        server.add_generic_rpc_handlers((self,))
        return cast(grpc.aio.Server, self)

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Put methods behind the door."""
        self._behind += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Generated code adds its methods in both ways."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler | None:
        """The handler of a method, behind the door."""
        method = handler_call_details.method
        kept = self._kept.get(method)
        if kept is None:
            found = (behind.service(handler_call_details) for behind in self._behind)
            handler = next((one for one in found if one is not None), None)
            if handler is None:
                return None  # there is no such method, and it is not remembered
            if method not in GRPC:
                return self._without_rule(method, handler)
            kept = self._kept[method] = self._keep(method, handler)
        if self._required:
            _metadata.set(handler_call_details.invocation_metadata)
        return kept

    def _keep(self, method: str, handler: _Handler) -> _Handler:
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
        if handler.stream_stream is not None and not generates:
            return grpc.stream_stream_rpc_method_handler(self._duplex(method, rule, handler, parse))

        async def decide(requests: Any, context: Any) -> None:
            place = await self._enter(method, rule, context)
            try:
                given = requests
                if not handler.request_streaming:
                    given = await self._only(method, rule, place.account, context)
                if generates:
                    async for response in inner(given, context):
                        await context.write(response)
                    return
                response = await inner(given, context)
                if not handler.response_streaming:
                    await context.write(response)
            finally:
                place.leave()

        return grpc.stream_stream_rpc_method_handler(decide, parse, handler.response_serializer)

    def _duplex(
        self, method: str, rule: Rule, handler: _Handler, parse: Callable[[bytes], Any]
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A stream both ways, whose messages count with their bytes."""
        inner: Any = handler.stream_stream
        serialize: Any = handler.response_serializer

        async def decide(_: object, context: Any) -> None:
            place = await self._enter(method, rule, context)
            stream: Duplex[Any, Any] = Duplex(
                context, parse, serialize, self._requests, self._answers, place.account
            )
            try:
                await inner(stream, context)
            finally:
                stream.close()
                place.leave()

        return decide

    def _call(
        self, method: str, rule: Rule, handler: _Handler, parse: Callable[[bytes], Any]
    ) -> Callable[[Any, Any], Awaitable[bytes]]:
        """A method with one message each way, as gRPC runs one that takes many.

        So it is decided before the message is read, and the sizes of both messages are known.
        """
        inner: Any = handler.unary_unary
        serialize: Any = handler.response_serializer
        counted_as = self._budgets.of(rule.kind)
        is_open = rule.roles is None
        requests, arrivals = self._room_for(rule)
        answers = self._answers
        largest = requests.largest
        # Who reads takes room for the answer first. A long poll takes it when its wait is over.
        polls = rule.reads and rule.kind is Kind.WAIT
        answers_at_once = rule.reads and not polls

        async def call(messages: Any, context: Any) -> bytes:
            try:
                caller = self._admit(method, rule, context)
                # Where nobody has to be known, such calls count in all only.
                account = caller.account if caller.name or is_open else ""
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

            # gRPC does so when the answer has been sent, or when the call ends in another way.
            context.add_done_callback(ended)
            enter_call(caller)
            try:
                if not requests.take(account):
                    await requests.wait(account)
                asked = largest
                data = await arrivals.read(context)
                asked = requests.change(account, asked, weight(len(data)))
                if len(data) > LONG:
                    await turn()
                request = parse(data)
                del data
                if isinstance(request, Refused):
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
            del request  # gRPC keeps this frame with the error of a call that is refused
            answer: bytes = serialize(await made)
            size = weight(len(answer))
            if rule.reads and size > room.taken:
                try:
                    answers.check(account, room.taken, size)
                except JobQueueError as error:
                    del answer  # as above
                    await self._abort(method, error, time.perf_counter(), context)
            room.change(size)
            return answer

        return call

    async def _enter(self, method: str, rule: Rule, context: Any) -> Place:
        """Let a stream in."""
        started = time.perf_counter()
        try:
            caller = self._admit(method, rule, context)
            place = self._budgets.enter(rule.kind, caller.account)
        except JobQueueError as error:
            await self._abort(method, error, started, context)
        enter_call(caller)
        return place

    def _admit(self, method: str, rule: Rule, context: Any) -> Caller:
        """Decide about a caller with all that is known of it."""
        if self._calls.stopping and GRPC[method] not in _UNTIL_THE_END:
            raise server_stopping()
        if rule.roles is None:
            return _anybody(context.peer(), frozenset())
        if not self._required:
            return _anybody(context.peer(), EVERY_ROLE)
        access = self._access
        shown = _shown(_metadata.get(), _address(context.peer()))
        if access.asks_certificate(shown):
            shown = replace(shown, certificate=certificate_name(context.auth_context()))
        caller = access.identify(shown)
        permit(caller, rule.roles, method.rpartition("/")[2])
        return caller

    async def _only(self, method: str, rule: Rule, account: str, context: Any) -> Any:
        """The one message of a call that answers with many."""
        room, arrivals = self._room_for(rule)
        try:
            if not room.take(account):
                await room.wait(account)
            try:
                request = await arrivals.read(context)
            finally:
                room.change(account, room.largest, 0)  # what such a call asks for is short
            if isinstance(request, Refused):
                raise request.error
        except JobQueueError as error:
            await self._abort(method, error, time.perf_counter(), context)
        return request

    def _room_for(self, rule: Rule) -> tuple[MessageBytes, Arrivals]:
        """Where the bytes of a request count."""
        if rule.roles is None:
            return self._open, self._open_arrivals
        return self._requests, self._arrivals

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
        if not self._required:
            return handler
        error = PermissionDenied(f"{method.rpartition('/')[2]} is not for callers of this server")
        return self._refusing(method, error, time.perf_counter())


def _is_no_answer_lost(record: logging.LogRecord) -> bool:
    """Whether a line of gRPC is about more than a caller that left while its answer was sent.

    gRPC takes that for an error. It is none, and callers could fill the log with it.
    """
    found = record.getMessage().partition("ExecuteBatchError raised in core by servicer method [")
    return found[2].rstrip("]") not in GRPC


def _short(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A parser for what everybody may send: nobody needs more than a name there."""

    def parse_short(data: bytes) -> Any:
        if len(data) > _MAX_OPEN_BYTES:
            allowed = f"at most {_MAX_OPEN_BYTES} bytes are allowed"
            return Refused(InvalidArgument("request", allowed))
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
    """The common name, or else the first DNS name; empty if there is none to be trusted."""
    # The names in ``auth`` end at their first NUL. The certificate has all of them.
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
    """Who needs to show nothing."""
    return Caller("", roles, _address(peer))


@lru_cache(1024)
def _address(peer: str) -> str:
    """``ipv4:127.0.0.1:40000`` without scheme and port."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]") or peer
