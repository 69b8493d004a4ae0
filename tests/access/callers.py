"""Callers of each face: they knock with any headers, and say what they were answered."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc
import grpc.aio
import httpx

from jobqueue.pb.jq.v1 import (
    client_pb2,
    client_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
    types_pb2,
    worker_pb2,
    worker_pb2_grpc,
)
from tests import patience
from tests.access.certificates import Authority, Certificates, Pair
from tests.access.conftest import Served

Headers = list[tuple[str, str]]
OK = "OK"
UNREACHABLE = "UNREACHABLE"
FACES = ("http", "grpc")


class Knocking(Protocol):
    """Does one thing of each role. Returns OK, the error's code, or UNREACHABLE."""

    async def submit(self, headers: Headers) -> str: ...
    async def read(self, headers: Headers) -> str: ...
    async def operate(self, headers: Headers) -> str: ...
    async def probe(self) -> str: ...


class OverHttp:
    """Remembers the last answer."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.last: httpx.Response

    async def ask(self, method: str, path: str, headers: Headers, body: Any = None) -> str:
        try:
            self.last = await self._client.request(method, path, headers=headers, json=body)
        except httpx.TransportError:
            return UNREACHABLE
        return OK if self.last.is_success else self.last.json()["error"]["code"]

    async def submit(self, headers: Headers) -> str:
        return await self.ask("POST", "/jobs", headers, {"payload": 1})

    async def read(self, headers: Headers) -> str:
        return await self.ask("GET", "/jobs", headers)

    async def operate(self, headers: Headers) -> str:
        return await self.ask("GET", "/queues", headers)

    async def probe(self) -> str:
        return await self.ask("GET", "/healthz", [])


class OverGrpc:
    """Bare stubs: the remote client would not send wrong headers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.client = client_pb2_grpc.ClientServiceStub(channel)
        self.operator = operator_pb2_grpc.OperatorServiceStub(channel)
        self.worker = worker_pb2_grpc.WorkerServiceStub(channel)
        self.last: grpc.aio.AioRpcError

    async def ask(self, method: Any, request: Any, headers: Headers) -> str:
        metadata = tuple((name.lower(), value) for name, value in headers)
        try:
            await method(request, metadata=metadata, timeout=patience.longest(10))
        except grpc.aio.AioRpcError as error:
            self.last = error
            found = dict(error.trailing_metadata() or ()).get("jq-code")
            if error.code() is grpc.StatusCode.UNAVAILABLE and not found:
                return UNREACHABLE
            return str(found or error.code().name)
        return OK

    async def submit(self, headers: Headers) -> str:
        request = client_pb2.SubmitRequest(spec=types_pb2.JobSpec(queue="default", payload=b"1"))
        return await self.ask(self.client.Submit, request, headers)

    async def read(self, headers: Headers) -> str:
        return await self.ask(self.client.ListJobs, client_pb2.ListJobsRequest(), headers)

    async def operate(self, headers: Headers) -> str:
        return await self.ask(self.operator.ListQueues, operator_pb2.ListQueuesRequest(), headers)

    async def work(self, headers: Headers) -> str:
        info = types_pb2.WorkerInfo(
            id="w", incarnation=7, hostname="h", pid=1, queues=["default"], concurrency=1
        )
        return await self.ask(
            self.worker.Register, worker_pb2.RegisterRequest(worker=info), headers
        )

    async def probe(self) -> str:
        check: Any = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        return await self.ask(check, b"", [])


@asynccontextmanager
async def calling(
    face: str,
    served: Served,
    certs: Certificates | Authority | None = None,
    pair: Pair | None = None,
) -> AsyncIterator[Any]:
    """A caller of that face; with ``certs`` over TLS, with ``pair`` showing that certificate."""
    if face == "http":
        verify: ssl.SSLContext | bool = True
        if certs is not None:
            verify = ssl.create_default_context(cafile=str(certs.ca))
            if pair is not None:
                verify.load_cert_chain(pair.cert, pair.key)
        scheme = "http" if certs is None else "https"
        url = f"{scheme}://127.0.0.1:{served.http}"
        async with httpx.AsyncClient(
            base_url=url, verify=verify, timeout=patience.longest(10)
        ) as client:
            yield OverHttp(client)
        return
    target = f"127.0.0.1:{served.grpc}"
    if certs is None:
        channel = grpc.aio.insecure_channel(target)
    else:
        credentials = grpc.ssl_channel_credentials(
            certs.ca.read_bytes(),
            pair.key.read_bytes() if pair else None,
            pair.cert.read_bytes() if pair else None,
        )
        channel = grpc.aio.secure_channel(target, credentials)
    async with channel:
        yield OverGrpc(channel)


def bearer(secret: str) -> Headers:
    """The usual way to show a key or token."""
    return [("Authorization", f"Bearer {secret}")]
