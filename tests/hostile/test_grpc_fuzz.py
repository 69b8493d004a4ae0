"""Every RPC, with any message that its descriptor allows: no defect shows, and the server goes on.

The seed and the number of examples are fixed: what passes once passes again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor as described
from google.protobuf import message_factory
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from jobqueue.api.grpc import errors
from jobqueue.api.grpc.server import SERVICES, GrpcFace
from jobqueue.core.clock import SystemClock
from jobqueue.core.job import JobSpec
from jobqueue.core.store import Rules
from jobqueue.engine.engine import Engine
from jobqueue.pb import taskqueue_internal_pb2, taskqueue_public_pb2
from jobqueue.pb.jq.v1 import (
    client_pb2,
    operator_pb2,
    schedules_pb2,
    types_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from jobqueue.taskqueue.grpc import errors as taskqueue_errors
from jobqueue.taskqueue.grpc.servicers import SERVICE as TASKQUEUE
from jobqueue.taskqueue.grpc.servicers import taskqueue_service
from jobqueue.taskqueue.on_engine import EngineTaskQueue
from tests import patience
from tests.examples import FACTOR, examples
from tests.stores.every import NAMES, STORES, Places
from tests.taskqueue.together import design_a

pytestmark = [
    pytest.mark.req("inp:PROD"),
    pytest.mark.timeout(600 * FACTOR),
    pytest.mark.hypothesis,
    # It is the server that does, in its thread.
    pytest.mark.filterwarnings(
        "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
    ),
]

EXAMPLES = examples(10)  # of each RPC
IN_MEMORY = 4  # times as many there: most defects are found before the store, which is quickest
PATIENCE = 0.3  # with a stream that has nothing more to say
INTERNAL_SERVICES = {
    "JobInternalService": "job",
    "QueueInternalService": "queue",
    "CoordinatorInternalService": "coordinator",
    "ResultInternalService": "result",
}
_FILES = (
    client_pb2,
    operator_pb2,
    schedules_pb2,
    worker_pb2,
    taskqueue_public_pb2,
    taskqueue_internal_pb2,
)
_ALL = {
    service.full_name: service
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
}


# -- messages --------------------------------------------------------------------------------------


@dataclass
class Known:
    """Values that mean something to the server, so that calls reach deeper than a check."""

    fields: dict[str, list[Any]] = field(default_factory=dict)  # by the field's name
    lists: dict[str, list[list[Any]]] = field(default_factory=dict)


_TEXTS = ["", "a\0b", "\n", "*", "default", "ä\u2028😀", "x" * 300, "00000000-0000-0000-0000-0"]
_NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
_FLOATS = [0.0, -0.0, 0.01, 1.0, -1.0, 1e-320, 1e300, math.nan, math.inf, -math.inf]
_RANGES = {
    described.FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    described.FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    described.FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    described.FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _scalar(one: Any, known: Known) -> st.SearchStrategy[Any]:
    if one.name not in known.fields:
        return _any_scalar(one)
    right = st.sampled_from(known.fields[one.name])
    return right | right | right | _any_scalar(one)


def _any_scalar(one: Any) -> st.SearchStrategy[Any]:
    kinds = described.FieldDescriptor
    if one.cpp_type == kinds.CPPTYPE_STRING:
        if one.type == kinds.TYPE_BYTES:
            return st.binary(max_size=40)
        free = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
        return st.sampled_from(_TEXTS) | free
    if one.cpp_type in _RANGES:
        low, high = _RANGES[one.cpp_type]
        return st.sampled_from([n for n in _NUMBERS if low <= n <= high]) | st.integers(low, high)
    if one.cpp_type == kinds.CPPTYPE_ENUM:
        return st.sampled_from([*one.enum_type.values_by_number, 99, -1])
    if one.cpp_type == kinds.CPPTYPE_BOOL:
        return st.booleans()
    assert one.cpp_type in (kinds.CPPTYPE_DOUBLE, kinds.CPPTYPE_FLOAT), one.full_name
    floats = st.sampled_from(_FLOATS)
    # A wait that is allowed is waited for.
    return floats if one.name == "wait_seconds" else floats | st.floats()


_MESSAGES = ("spec", "worker", "queue", "hello", "schedule", "job")  # a request is nothing without


def messages(kind: Any, known: Known, depth: int = 4) -> st.SearchStrategy[Any]:
    """Any message of this descriptor."""
    make = message_factory.GetMessageClass(kind)

    def value(one: Any) -> st.SearchStrategy[Any]:
        if one.message_type is None:
            return _scalar(one, known)
        return messages(one.message_type, known, depth - 1)

    needed: dict[str, st.SearchStrategy[Any]] = {}
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for one in kind.fields:
        if one.message_type is not None and depth == 0:
            continue
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            key, held = one.message_type.fields_by_name["key"], one.message_type.fields_by_name
            parts[one.name] = st.dictionaries(_scalar(key, known), value(held["value"]), max_size=3)
        elif one.is_repeated:
            any_list = st.lists(value(one), max_size=4)
            right = known.lists.get(one.name)
            parts[one.name] = st.sampled_from(right) | any_list if right else any_list
        elif one.name in known.fields:
            needed[one.name] = value(one)
        else:
            parts[one.name] = value(one)
    anything = st.fixed_dictionaries({}, optional={**needed, **parts})
    plausible = st.fixed_dictionaries(needed, optional=parts)
    plain = st.fixed_dictionaries(
        {
            **{name: st.sampled_from(known.fields[name]) for name in needed},
            **{name: st.sampled_from(known.lists[name]) for name in parts if name in known.lists},
            **{name: parts[name] for name in parts if name in _MESSAGES},
        }
    )
    return (anything | plausible | plain).map(lambda values: make(**values))


# -- the server ------------------------------------------------------------------------------------


@dataclass
class Target:
    """Servers in this process, on a loop of their own."""

    addresses: Mapping[str, str]  # by full name of the service
    known: Known
    channels: dict[str, grpc.Channel] = field(default_factory=dict)

    def channel(self, service: str) -> grpc.Channel:
        address = self.addresses[service]
        if address not in self.channels:
            self.channels[address] = grpc.insecure_channel(address)
        return self.channels[address]


WORKER = types_pb2.WorkerInfo(
    id="w", incarnation=7, hostname="h", pid=1, concurrency=2, queues=["default"]
)


async def prepared(engine: Engine, port: int) -> Known:
    """Jobs, and a worker that holds one of them: calls that name them have something to do."""
    specs = [JobSpec(payload=b"1", key=f"key-{n}", type="t") for n in range(4)]
    jobs = [result.unwrap() for result in await engine.submit(specs)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        worker: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        await worker.Register(worker_pb2.RegisterRequest(worker=WORKER))
        asked = worker_pb2.FetchRequest(worker_id="w", incarnation=7, limit=1, wait_seconds=20)
        (held,) = (await worker.Fetch(asked)).assignments
    fields: dict[str, list[Any]] = {
        "job_id": [*jobs, str(UUID(int=1))],
        "id": ["w", "v"],
        "worker_id": ["w", "v"],
        "incarnation": [7, 8],
        "concurrency": [1, 2],
        "limit": [1, 2],
        "name": ["default", "other"],
        "payload": [b"1"],
        "seq": [held.seq, held.seq + 1],
        "lease": [held.lease, 1],
        "kind": [1, 2, 3, 6],
        "slots": [1],
        "pid": [1],
        "hostname": ["h"],
        "job_type": ["echo"],
    }
    lists: dict[str, list[list[Any]]] = {
        "queues": [["default"], ["*"]],
        "leases": [[held.lease], []],
        "types": [["t"], []],
    }
    return Known(fields, lists)


@asynccontextmanager
async def jq_server(make: Callable[[], Any]) -> AsyncIterator[Target]:
    """jq.v1 and taskqueue.v1, with jobs in several states and a worker that holds one."""
    engine = Engine(make())
    await engine.start()
    face = GrpcFace(engine, services=taskqueue_service(EngineTaskQueue(engine)))
    port = await face.start("127.0.0.1", 0)
    known = await prepared(engine, port)
    services = (*SERVICES, TASKQUEUE.full_name)
    try:
        yield Target(dict.fromkeys(services, f"127.0.0.1:{port}"), known)
    finally:
        await face.stop(0.5)
        await engine.stop()


@asynccontextmanager
async def microservices() -> AsyncIterator[Target]:
    """jq-service: the public face and the calls between its parts."""
    async with design_a({"SHUTDOWN_TIMEOUT_MS": "0", "RETRY_AFTER_MS": "50"}) as addresses:
        found = {TASKQUEUE.full_name: addresses["gateway"]}
        for service in _ALL.values():
            if service.name in INTERNAL_SERVICES:
                found[service.full_name] = addresses[INTERNAL_SERVICES[service.name]]
        fields: dict[str, list[Any]] = {"worker_id": ["w"], "job_type": ["echo"]}
        yield Target(found, Known(fields))


class Loop:
    """A server's loop in a thread: the test's own calls block."""

    def __init__(self, serving: AbstractAsyncContextManager[Target]) -> None:
        self._serving = serving
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Target:
        self._thread.start()
        self.target: Target = self._run(self._serving.__aenter__())
        return self.target

    def __exit__(self, *_: object) -> None:
        for channel in self.target.channels.values():
            channel.close()
        try:
            self._run(self._serving.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patience.longest(60))


# -- calls -----------------------------------------------------------------------------------------


def ended(call: Callable[[], Any], endless: bool) -> grpc.RpcError | None:
    """Read a call to its end; None: it went well, or said nothing more within its time."""
    try:
        answer = call()
        if endless:
            for _ in answer:
                pass
    except grpc.RpcError as error:
        if endless and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return None
        return error
    return None


def check(error: grpc.RpcError | None, allowed: Iterable[grpc.StatusCode]) -> None:
    """What a caller is told is one of the documented codes, with the field where one is wrong."""
    if error is None:
        return
    metadata: Any = error.trailing_metadata() or ()
    said: dict[str, Any] = dict(metadata)
    assert error.code() in allowed, (error.code(), error.details())
    assert said.get("jq-code"), f"gRPC itself refused it: {error.details()}"
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        assert said.get("jq-field"), error.details()


# Those that a caller who is known, asks a server that is well, and has time, may be told.
_HEALTHY = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_BETWEEN_PARTS = {grpc.StatusCode.PERMISSION_DENIED}


def allowed_for(service: Any) -> set[grpc.StatusCode]:
    table = errors.STATUS if service.full_name.startswith("jq.") else taskqueue_errors.STATUS
    allowed = _HEALTHY & set(table.values())
    return allowed | _BETWEEN_PARTS if service.name in INTERNAL_SERVICES else allowed


_CALLERS = st.sampled_from([(), (("tq-caller", "gateway"),), (("tq-caller", "coordinator"),)])


def stub_of(target: Target, service: Any, method: Any) -> Any:
    kinds = {True: "stream", False: "unary"}
    make: Any = getattr(
        target.channel(service.full_name),
        f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}",
    )
    return make(
        f"/{service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )


def streamed(method: Any, request: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    several = st.lists(request, max_size=4)
    if method.name != "Connect":
        return several
    hello = worker_pb2.ConnectRequest(hello=worker_pb2.Hello(worker=WORKER))
    return several | several.map(lambda found: [hello, *found])


def fuzz(target: Target, service: Any, method: Any, count: int = EXAMPLES) -> None:
    """Call a method with messages of every kind."""
    stub = stub_of(target, service, method)
    request = messages(method.input_type, target.known)
    streams = method.client_streaming or method.server_streaming

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        asked=streamed(method, request) if method.client_streaming else request,
        metadata=_CALLERS if service.name in INTERNAL_SERVICES else st.just(()),
    )
    def call(asked: Any, metadata: Any) -> None:
        note(method.full_name)
        timeout = PATIENCE if streams else patience.longest(30)
        given = iter(asked) if isinstance(asked, list) else asked
        error = ended(lambda: stub(given, metadata=metadata, timeout=timeout), streams)
        check(error, allowed_for(service))

    call()


def garbage(target: Target, service: Any) -> None:
    """Bodies that are no message at all."""
    for method in service.methods:
        if method.client_streaming or method.server_streaming:
            continue
        stub = target.channel(service.full_name).unary_unary(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda body: body,
            response_deserializer=lambda body: body,
        )
        bodies = [b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f"]
        first = method.input_type.fields_by_number.get(1)
        if first is not None and first.type == first.TYPE_STRING:
            bodies.append(b"\x0a\x02\xc3\x28")  # is not UTF-8
        for body in bodies:
            error = ended(partial(stub, body, timeout=patience.longest(30)), False)
            assert error is not None, f"{method.full_name} took {body!r}"
            check(error, allowed_for(service))


def alive(target: Target) -> None:
    """The server still does its work."""
    if SERVICES[0] not in target.addresses:
        return
    create, submit = (
        stub_of(target, _ALL[service], _ALL[service].methods_by_name[method])
        for service, method in ((SERVICES[1], "CreateQueue"), (SERVICES[0], "Submit"))
    )
    # The fuzz may have paused, filled or removed any queue that it could name.
    wanted = operator_pb2.CreateQueueRequest()
    wanted.queue.name = "afterwards"
    create(wanted, timeout=patience.longest(30))
    asked = client_pb2.SubmitRequest()
    asked.spec.payload, asked.spec.queue = b"1", "afterwards"
    assert submit(asked, timeout=patience.longest(30)).job_id


def defects(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the server logged with a traceback."""
    return [
        f"{record.name}: {record.getMessage()}: {record.exc_info[1]!r}"
        for record in caplog.records
        if record.exc_info and record.levelno >= logging.ERROR
    ]


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    places = Places(request, request.param, tmp_path)
    yield lambda: STORES[request.param](places.new, Rules(), SystemClock())
    places.close()


@pytest.mark.parametrize("store", NAMES, indirect=True)
@pytest.mark.parametrize("service", [*SERVICES, TASKQUEUE.full_name])
def test_no_message_shows_a_defect_of_jq_server(
    request: pytest.FixtureRequest,
    store: Callable[[], Any],
    service: str,
    caplog: pytest.LogCaptureFixture,
):
    in_memory = request.node.callspec.params["store"] == "memory"
    count = EXAMPLES * IN_MEMORY if in_memory else EXAMPLES
    with Loop(jq_server(store)) as target:
        for method in _ALL[service].methods:
            fuzz(target, _ALL[service], method, count)
        garbage(target, _ALL[service])
        alive(target)
    assert defects(caplog) == []


def test_no_message_shows_a_defect_of_jq_service(caplog: pytest.LogCaptureFixture):
    with Loop(microservices()) as target:
        for service in target.addresses:
            for method in _ALL[service].methods:
                fuzz(target, _ALL[service], method, EXAMPLES * IN_MEMORY // 2)
            garbage(target, _ALL[service])
    assert defects(caplog) == []


def test_every_service_is_among_them():
    served = {*SERVICES, TASKQUEUE.full_name}
    internal = {one.full_name for one in _ALL.values() if one.name in INTERNAL_SERVICES}
    assert served | internal == set(_ALL)
