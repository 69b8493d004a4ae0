"""A server that knows its callers, wired as jq-server wires it, and each caller's own hands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from jobqueue import config
from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.server.process import ServerProcess
from jobqueue.taskqueue.grpc.remote import RemoteTaskQueue
from tests import patience

ROLES = {
    "web": "client",
    "shop": "client",
    "ops": "client+operator",
    "boss": "operator",
    "guest": "viewer",
    "night": "client+worker",
    "day": "client+worker",
    "hands": "worker",
}


def key_of(name: str) -> str:
    """The API key of a caller."""
    return f"{name}-key-of-some-length-0123456789"


@asynccontextmanager
async def serving(
    url: str = "memory://", *, known: bool = True, **flags: str
) -> AsyncIterator[ServerProcess]:
    """A server with a key for each caller, or without any; flags have ``__`` for the dot."""
    keys = ",".join(f"{name}:{roles}:{key_of(name)}" for name, roles in ROLES.items())
    environ = {"JQ_AUTH_API_KEYS": keys} if known else {}
    told = {
        "db.url": url,
        "http.port": "0",
        "grpc.port": "0",
        "worker.concurrency": "0",
        "server.shutdown_timeout": "4",
        **{name.replace("__", "."): value for name, value in flags.items()},
    }
    server = ServerProcess(config.load(flags=told, environ=environ).settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def over_http(server: ServerProcess, name: str | None, **headers: str) -> AsyncIterator[Any]:
    """An HTTP client of that caller; ``None`` shows no key."""
    if name is not None:
        headers["Authorization"] = f"Bearer {key_of(name)}"
    async with httpx.AsyncClient(
        base_url=server.http_url, headers=headers, timeout=patience.longest(10)
    ) as client:
        yield client


@asynccontextmanager
async def over_grpc(server: ServerProcess, name: str) -> AsyncIterator[GrpcBackend]:
    """The SDK's backend of that caller."""
    backend = GrpcBackend(
        server.grpc_target,
        credentials=Credentials(api_key=key_of(name)),
        timeout=patience.longest(10),
    )
    try:
        yield backend
    finally:
        await backend.stop()


@asynccontextmanager
async def over_taskqueue(server: ServerProcess, name: str) -> AsyncIterator[RemoteTaskQueue]:
    """A taskqueue.v1 client of that caller."""
    client = RemoteTaskQueue(server.grpc_target, Credentials(api_key=key_of(name)))
    try:
        yield client
    finally:
        await client.close()
