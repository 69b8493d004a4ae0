"""Parts whose answers a test chooses, and what a server saw of the calls to them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from jobqueue.core.waiting import remaining
from jobqueue.taskqueue.components.journal import METHOD
from jobqueue.taskqueue.components.model import (
    Applied,
    Canceled,
    CreatedJob,
    Envelope,
    JobRecord,
    Report,
    Spec,
    Status,
    Stored,
    Submitted,
    Summary,
    SummaryPage,
    Work,
    WorkOutcome,
    checksum,
)
from jobqueue.taskqueue.grpc.callers import CALLER, PURPOSE, REQUEST_ID

JOB = "0b4ee0a2-1111-4222-8333-444455556666"
OTHER = "0b4ee0a2-1111-4222-8333-444455557777"
FOREVER = "forever"
LONG = 1000.0

SPEC = Spec("simulate", 1_500, 70_000, {"team": "ä", "empty": ""})
SUMMARY = Summary(JOB, Status.CANCELED, "simulate", 2**41 + 1, 2**41 + 2, 2**41 + 3, True)
RECORD = JobRecord(SUMMARY, SPEC, "it broke\nhere")
ENVELOPE = Envelope(JOB, Status.DONE, 4_000_000_000, "all well", b"\x00\xff", checksum(b"\x00\xff"))
REPORT = Report(
    "worker-1", JOB, WorkOutcome.CANCELED, 17, "stopped", "half", b"\x01\x00", checksum(b"\x01\x00")
)
PAGE = SummaryPage((SUMMARY, Summary(OTHER, Status.QUEUED, "noop", 5)), 150)


class Part:
    """Any of the Protocols: answers by the name of the method, and notes what it was asked.

    An answer that is an exception is raised, and ``FOREVER`` never comes; of a deque, each call
    takes the next.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.left: list[float] = []  # seconds, for each call
        self.methods: list[str] = []  # as the journal would write them

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_") or name not in self.answers:
            raise AttributeError(name)

        async def call(*args: Any, **named: Any) -> Any:
            self.calls.append((name, args, named))
            self.left.append(remaining(LONG))
            self.methods.append(METHOD.get())
            answer = self.answers[name]
            if isinstance(answer, deque):
                answer = answer.popleft()
            if isinstance(answer, str) and answer == FOREVER:
                await asyncio.Event().wait()
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


def task_queue(**answers: Any) -> Any:
    return Part(
        **{
            "submit": Submitted(JOB, 2**41),
            "status": RECORD,
            "result": ENVELOPE,
            "cancel": Canceled(JOB, True, Status.DONE, already_terminal=True),
            "list": PAGE,
            **answers,
        }
    )


def jobs(**answers: Any) -> Any:
    return Part(
        **{
            "create": CreatedJob(JOB, Status.RUNNING, created=True),
            "delete_if": Applied(True, None),
            "get": RECORD,
            "list": PAGE,
            "transition": Applied(True, Status.CANCELED),
            "request_cancel": Applied(True, Status.RUNNING),
            **answers,
        }
    )


def queue(**answers: Any) -> Any:
    return Part(**{"enqueue": True, "dequeue": JOB, "remove": True, **answers})


def results(**answers: Any) -> Any:
    return Part(**{"store": Stored(True, True, Status.FAILED), "get": ENVELOPE, **answers})


def coordination(**answers: Any) -> Any:
    return Part(**{"heartbeat": 900, "fetch": Work(JOB, SPEC), "report": True, **answers})


class Tap(grpc.aio.ServerInterceptor):
    """Sees every call at the server; ``lose`` makes the next answers to a method get lost."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []  # method and request
        self.answers: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, str]] = []
        self._lost: dict[str, int] = {}

    def lose(self, method: str, times: int = 1) -> None:
        self._lost[method] = times

    def request_ids(self) -> list[str]:
        return [metadata.get(REQUEST_ID, "") for metadata in self.metadata]

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.stream_unary is None:
            return handler
        full_name = handler_call_details.method[1:].replace("/", ".")
        found = descriptor_pool.Default().FindMethodByName(full_name)
        method = found.name

        async def call(requests: Any, context: Any) -> Any:
            self.metadata.append(dict(context.invocation_metadata()))
            heard = _Heard(context, lambda data: self.seen.append((method, _built(found, data))))
            response = await handler.stream_unary(requests, heard)
            self.answers.append((method, GetMessageClass(found.output_type).FromString(response)))
            if self._lost.get(method, 0) > 0:
                self._lost[method] -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
            return response

        return grpc.stream_unary_rpc_method_handler(call)


class _Heard:
    """A call's context that tells of the message that is read."""

    def __init__(self, context: Any, told: Callable[[bytes], None]) -> None:
        self._context = context
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        data = await self._context.read()
        if isinstance(data, bytes):
            self._told(data)
        return data


def _built(method: MethodDescriptor, data: bytes) -> Any:
    """The request, or its bytes if they are none."""
    try:
        return GetMessageClass(method.input_type).FromString(data)
    except DecodeError:
        return data


def as_caller(caller: str = "", request_id: str = "", purpose: str = "") -> tuple[Any, ...]:
    pairs: Iterable[tuple[str, str]] = (
        (CALLER, caller),
        (REQUEST_ID, request_id),
        (PURPOSE, purpose),
    )
    return tuple((name, value) for name, value in pairs if value)
