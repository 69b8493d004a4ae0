"""The HTTP face on a real port, over a backend that does as it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
import pytest_asyncio

from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpFaceSettings
from tests import patience
from tests.api.http.fake import FakeBackend
from tests.plain_http import plain_http

Serve = Callable[[HttpFaceSettings], Awaitable[httpx.AsyncClient]]


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest_asyncio.fixture
async def serve(backend: FakeBackend) -> AsyncIterator[Serve]:
    """Start a face with the given settings; everything ends with the test."""
    faces: list[HttpFace] = []
    clients: list[httpx.AsyncClient] = []

    async def start(settings: HttpFaceSettings) -> httpx.AsyncClient:
        face = HttpFace(backend, settings)
        faces.append(face)
        port = await face.start("127.0.0.1", 0)
        client = plain_http(f"http://127.0.0.1:{port}", timeout=patience.longest(20))
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.aclose()
    for face in faces:
        await face.stop()


@pytest_asyncio.fixture
async def http(serve: Serve) -> httpx.AsyncClient:
    """A client of a face with the default settings."""
    return await serve(HttpFaceSettings())
