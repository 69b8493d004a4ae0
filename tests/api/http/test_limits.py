"""Size, time and number: every request is bounded, and no failure leaks or hangs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx
import pytest

from jobqueue.access.budgets import Budget, Budgets
from jobqueue.access.rules import BudgetKind
from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.errors import Unavailable
from tests import patience
from tests.api.http.conftest import Serve
from tests.api.http.fake import FakeBackend
from tests.plain_http import plain_http

MIB = 1024 * 1024


class Talk:
    """A raw connection, for what a well-behaved client would not do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, http: httpx.AsyncClient) -> Talk:
        port = http.base_url.port
        assert port is not None
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def hear(self) -> tuple[int, bytes]:
        """Read to the end; returns the status and everything."""
        async with patience.timeout(10):
            heard = await self.reader.read()
        self.writer.close()
        await self.writer.wait_closed()
        return int(heard.split(b" ", 2)[1]), heard


async def test_a_declared_length_is_refused_before_the_body_is_sent(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    talk = await Talk.to(http)
    talk.writer.write(
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n"
        b"Expect: 100-continue\r\n\r\n"
    )
    status, heard = await talk.hear()
    assert status == 413
    assert b"100 Continue" not in heard
    assert b'"field":"payload"' in heard
    assert backend.specs == []


async def test_a_body_of_unknown_length_is_refused_while_it_is_read(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    async def long_body() -> AsyncIterator[bytes]:
        yield b'{"payload": "'
        for _ in range(100):
            yield b"x" * 64 * 1024

    response = await http.post("/jobs", content=long_body())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "INVALID_ARGUMENT"
    assert backend.specs == []


async def test_a_body_without_end_is_answered_and_cut_off(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    talk = await Talk.to(http)
    talk.writer.write(
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    sent = 0

    async def send_for_ever() -> None:
        nonlocal sent
        while True:
            talk.writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent += 65536
            await talk.writer.drain()

    sending = asyncio.create_task(send_for_ever())
    answer = await talk.reader.readuntil(b'"field":"payload"}}')
    assert answer.startswith(b"HTTP/1.1 413")
    with pytest.raises(ConnectionError):
        await patience.wait_for(sending, 10)
    assert sent < 64 * MIB
    assert backend.specs == []
    talk.writer.close()


async def test_bodies_together_are_bounded(serve: Serve, backend: FakeBackend) -> None:
    http = await serve(HttpFaceSettings(max_buffered_bytes=3000))  # one caller has half of it
    backend.gate = asyncio.Event()
    first = asyncio.create_task(http.post("/jobs", json={"payload": "x" * 1000}))
    await backend.entered.wait()
    second = await http.post("/jobs", json={"payload": "x" * 1000})
    assert (second.status_code, second.headers["retry-after"]) == (503, "1")
    backend.gate.set()
    assert (await first).status_code == 202
    assert (await http.post("/jobs", json={"payload": "x" * 1000})).status_code == 202


async def test_a_slow_backend_is_504(serve: Serve, backend: FakeBackend) -> None:
    http = await serve(HttpFaceSettings(request_timeout=0.05))
    backend.gate = asyncio.Event()
    response = await http.post("/jobs", json={"payload": 1})
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "DEADLINE_EXCEEDED"
    assert "may still change something" in response.json()["error"]["message"]
    assert backend.left.is_set()
    backend.gate = None
    assert (await http.post("/jobs", json={"payload": 1})).status_code == 202


async def test_a_body_that_does_not_come_is_504(serve: Serve) -> None:
    http = await serve(HttpFaceSettings(request_timeout=0.05))
    talk = await Talk.to(http)
    talk.writer.write(b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{")
    status, heard = await talk.hear()
    assert status == 504
    assert b"connection: close" in heard.lower()


@pytest.mark.parametrize("said", [b"", b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
async def test_headers_that_do_not_come(serve: Serve, said: bytes) -> None:
    http = await serve(HttpFaceSettings(head_timeout=0.05))
    talk = await Talk.to(http)
    talk.writer.write(said)
    status, heard = await talk.hear()
    assert status == 408
    assert b'"code":"INVALID_ARGUMENT"' in heard


async def test_headers_without_end(http: httpx.AsyncClient) -> None:
    talk = await Talk.to(http)
    talk.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
    await asyncio.sleep(0.01)  # so that the head arrives in more than one read
    talk.writer.write(b"y" * 80 * 1024)
    status, heard = await talk.hear()
    assert status == 431
    assert b"at most 65536 bytes" in heard


async def test_what_is_not_http(http: httpx.AsyncClient) -> None:
    talk = await Talk.to(http)
    talk.writer.write(b"hello there\r\n\r\n")
    status, heard = await talk.hear()
    assert status == 400
    assert b'"error":{"code":"INVALID_ARGUMENT"' in heard


async def test_one_connection_serves_many_requests(http: httpx.AsyncClient) -> None:
    talk = await Talk.to(http)
    for _ in range(3):
        talk.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await talk.reader.readuntil(b"ok\n")
        assert answer.startswith(b"HTTP/1.1 200")
    talk.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (await talk.hear())[0] == 200


async def test_an_idle_connection_is_closed(serve: Serve) -> None:
    http = await serve(HttpFaceSettings(keep_alive=0.5))
    talk = await Talk.to(http)
    talk.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await talk.hear())[0] == 200


async def test_too_many_requests_at_once(serve: Serve, backend: FakeBackend) -> None:
    http = await serve(HttpFaceSettings(budgets=Budgets({BudgetKind.CALL: Budget(1, 1)})))
    job = backend.add()
    backend.gate = asyncio.Event()
    first = asyncio.create_task(http.get(f"/jobs/{job.id}"))
    await backend.entered.wait()
    second = await http.get(f"/jobs/{job.id}")
    assert second.status_code == 503
    assert second.json()["error"]["code"] == "UNAVAILABLE"
    assert (await http.get("/healthz")).status_code == 200  # a probe is answered all the same
    backend.gate.set()
    assert (await first).status_code == 200
    assert (await http.get(f"/jobs/{job.id}")).status_code == 200


@pytest.mark.parametrize(
    "settings",
    [HttpFaceSettings(max_connections=1), HttpFaceSettings(max_connections_per_address=1)],
)
async def test_too_many_connections_in_use(
    serve: Serve, backend: FakeBackend, settings: HttpFaceSettings
) -> None:
    http = await serve(settings)
    backend.gate = asyncio.Event()
    first = await Talk.to(http)
    first.writer.write(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    await backend.entered.wait()
    status, heard = await (await Talk.to(http)).hear()
    assert status == 503
    assert b"Retry-After: 1" in heard
    backend.gate.set()
    assert (await first.hear())[0] == 200


async def test_a_connection_that_waits_makes_room(serve: Serve) -> None:
    http = await serve(HttpFaceSettings(max_connections=2))
    talks = [await Talk.to(http) for _ in range(3)]
    for talk in talks[1:]:
        talk.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await talk.hear())[0] == 200
    assert await talks[0].reader.read() == b""
    talks[0].writer.close()


async def test_a_defect_is_500_logged_and_leaks_nothing(
    http: httpx.AsyncClient, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.failure = RuntimeError("password=hunter2")
    response = await http.post("/jobs", json={"payload": 1})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "INTERNAL"
    assert "hunter2" not in response.text
    assert any(record.exc_info for record in caplog.records if record.name == "jobqueue.http")
    backend.failure = TimeoutError("not ours")
    assert (await http.post("/jobs", json={"payload": 1})).status_code == 500


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/jobs/", 404, "NOT_FOUND"),
        ("DELETE", "/jobs", 405, "INVALID_ARGUMENT"),
        ("PUT", "/queues/default", 405, "INVALID_ARGUMENT"),
    ],
)
async def test_routes_that_do_not_exist(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert path in response.json()["error"]["message"]


async def test_405_says_what_is_allowed(http: httpx.AsyncClient) -> None:
    response = await http.put("/jobs")
    assert response.headers["allow"] == "GET, POST"
    assert "allowed: GET, POST" in response.json()["error"]["message"]


async def test_pages_of_other_sites_cannot_submit(
    http: httpx.AsyncClient, backend: FakeBackend
) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    response = await http.post("/jobs", content='{"payload": 1}', headers=elsewhere)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
    assert backend.specs == []


async def test_a_client_that_leaves_in_mid_body(
    http: httpx.AsyncClient, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    talk = await Talk.to(http)
    talk.writer.write(b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{")
    await talk.writer.drain()
    talk.writer.close()
    await talk.writer.wait_closed()
    assert (await http.get("/healthz")).status_code == 200
    assert backend.specs == []
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_requests_are_logged_at_debug_only(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "jobqueue.http"):
        await http.get("/healthz")
    [record] = [r for r in caplog.records if r.name == "jobqueue.http" and r.msg == "request"]
    assert record.levelno == logging.DEBUG
    assert (record.__dict__["method"], record.__dict__["path"]) == ("GET", "/healthz")
    assert record.__dict__["status"] == 200


async def test_no_server_header(http: httpx.AsyncClient) -> None:
    response = await http.get("/healthz")
    assert "server" not in response.headers
    assert "date" in response.headers


async def test_a_port_that_is_taken(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    port = http.base_url.port
    assert port is not None
    face = HttpFace(backend)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port} is in use"):
        await face.start("127.0.0.1", port)
    await face.stop()


async def test_every_address_of_a_host_gets_the_same_port(backend: FakeBackend) -> None:
    face = HttpFace(backend)
    port = await face.start("localhost", 0)
    try:
        async with plain_http() as http:
            assert (await http.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
    finally:
        await face.stop()
        await face.stop()


async def test_stop_lets_requests_finish(backend: FakeBackend) -> None:
    face = HttpFace(backend)
    port = await face.start("127.0.0.1", 0)
    backend.gate = asyncio.Event()
    async with plain_http(f"http://127.0.0.1:{port}") as http:
        submit = asyncio.create_task(http.post("/jobs", json={"payload": 1}))
        await backend.entered.wait()
        stop = asyncio.create_task(face.stop(grace=10))
        await asyncio.sleep(0)
        assert not stop.done()
        backend.gate.set()
        assert (await submit).status_code == 202
        await stop
        with pytest.raises(httpx.ConnectError):
            await http.get("/healthz")


async def test_stop_cuts_off_what_does_not_end(backend: FakeBackend) -> None:
    face = HttpFace(backend)
    port = await face.start("127.0.0.1", 0)
    backend.gate = asyncio.Event()
    async with plain_http(f"http://127.0.0.1:{port}") as http:
        submit = asyncio.create_task(http.post("/jobs", json={"payload": 1}))
        await backend.entered.wait()
        await face.stop(grace=0.05)
        response = await submit
    assert (response.status_code, response.json()["error"]["code"]) == (502, "OUTCOME_UNKNOWN")
    assert backend.left.is_set()


def _chunked(http: httpx.AsyncClient, trailers: bytes) -> bytes:
    body = b'{"payload": 1}'
    return (
        b"POST /jobs HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n%b"
        % (str(http.base_url.host).encode(), len(body), body, trailers)
    )


@pytest.mark.parametrize("line", [b"x-a: %b" % (b"b" * 80 * 1024), b"x-a: b\r\n" * 12_000])
async def test_trailers_without_end_are_refused(http: httpx.AsyncClient, line: bytes) -> None:
    """They come after the body, so that the limit on headers has to be kept once more."""
    talk = await Talk.to(http)
    talk.writer.write(_chunked(http, b""))
    await asyncio.sleep(0.01)  # so that they arrive in a read of their own
    talk.writer.write(line)
    status, heard = await talk.hear()
    assert status == 431
    assert b"bytes of trailers are allowed" in heard


async def test_a_body_in_one_byte_chunks_is_fine(http: httpx.AsyncClient) -> None:
    body = b'{"payload": "%b"}' % (b"p" * 30_000)
    head = (
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    talk = await Talk.to(http)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    talk.writer.write(head + chunks + b"0\r\n\r\n")
    status = await patience.wait_for(talk.reader.readline(), 10)
    talk.writer.close()
    assert b" 202 " in status


async def test_a_trailer_is_not_a_header(serve: Serve, backend: FakeBackend) -> None:
    """Else it would carry what a proxy takes out of the headers past the proxy."""
    http = await serve(HttpFaceSettings())
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    # As a header this one makes it a request of another site's page, which is refused.
    writer.write(_chunked(http, b"Sec-Fetch-Site: cross-site\r\nOrigin: http://evil\r\n\r\n"))
    try:
        status = await patience.wait_for(reader.readline(), 10)
    finally:
        writer.close()
    assert b" 202 " in status
