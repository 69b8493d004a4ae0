"""Many connections or streams of one caller must not take HTTP from everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from jobqueue.api.grpc import channel
from jobqueue.api.grpc.server import GrpcFace
from jobqueue.api.http.face import HttpFace
from jobqueue.api.http.settings import MIB, HttpFaceSettings
from jobqueue.engine.engine import Engine
from jobqueue.stores.memory import MemoryStore
from tests import patience
from tests.access.certificates import Authority
from tests.cli import processes
from tests.hostile.target import API_KEYS, KEYS, Target, headers
from tests.hostile.test_messages import settled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

IDLE = 1_100
FEW_FILES = 400
WATCHERS = 530
ROOM_MIB = 120


@pytest.fixture(scope="module", autouse=True)
def _sockets() -> Iterator[None]:
    """Room for the attacker's sockets. The server inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4_096
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} open files, the system allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def small_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with few connections, of which one address has half."""
    with processes.server(
        tmp_path_factory.mktemp("small"),
        *("--db-url", "memory://", "--worker-concurrency", "0"),
        *("--set", "http.max_connections=120", "--set", "http.max_connections_per_address=60"),
    ) as service:
        yield Target(service)


@pytest.fixture(scope="module")
def tls_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same over TLS, in a process that may open few files."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    ours = authority.issue("server", "IP:127.0.0.1")
    with processes.server(
        folder,
        *("--db-url", "memory://", "--worker-concurrency", "0"),
        *("--set", "http.max_connections=120", "--set", "http.max_connections_per_address=60"),
        JQ_TLS_CERT=str(ours.cert),
        JQ_TLS_KEY=str(ours.key),
        JQ_AUTH_API_KEYS=API_KEYS,
    ) as service:
        target = Target(service, ssl.create_default_context(cafile=str(authority.ca)))
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))
        yield target


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def lines(
    target: Target, count: int, said: bytes, source: str = ""
) -> AsyncIterator[list[Line]]:
    """So many connections that have said the same."""
    opened: list[Line] = []
    local = (source, 0) if source else None

    async def another() -> None:
        line = await asyncio.open_connection("127.0.0.1", target.http_port, local_addr=local)
        opened.append(line)
        line[1].write(said)

    try:
        while len(opened) < count:
            await asyncio.gather(*(another() for _ in range(min(100, count - len(opened)))))
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def status(line: Line) -> int:
    """The status that a connection was answered with; 0: it was closed."""
    async with patience.timeout(60):
        try:
            first = await line[0].readline()
        except ConnectionError:
            return 0
    return int(first.split(b" ")[1]) if first else 0


async def still_there(target: Target, rounds: int = 5) -> None:
    """The healthy caller goes on calling meanwhile."""
    for _ in range(rounds):
        code, _ = await asyncio.to_thread(target.ask, "GET", "/readyz", {})
        assert code == 200


def submitted(target: Target, name: str) -> str:
    """A job that nobody finishes."""
    code, text = target.ask("POST", "/jobs", headers(name), '{"payload": 1}')
    assert code == 202, text
    job: str = json.loads(text)["job_id"]
    return job


def watching(job: str, name: str) -> bytes:
    return (
        f"GET /jobs/{job}/events?watch=1 HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {KEYS[name]}\r\n\r\n"
    ).encode()


async def test_the_watchers_of_one_caller_leave_room_for_others(target: Target) -> None:
    job = await asyncio.to_thread(submitted, target, "client")
    with target.watched() as seen:
        async with lines(target, WATCHERS, watching(job, "client")) as opened:
            codes = [await status(line) for line in opened]
            await still_there(target)
            await asyncio.to_thread(submitted, target, "client")  # streams have their own budget
            async with lines(target, 3, watching(job, "other")) as others:
                assert [await status(line) for line in others] == [200] * 3
    assert set(codes) == {200, 503}
    assert codes.count(200) >= 100
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
    ],
    ids=["silent", "half a head", "half a body, no key"],
)
async def test_idle_sockets_leave_room_for_others(target: Target, said: bytes) -> None:
    with target.watched() as seen:
        async with lines(target, IDLE, said):
            await still_there(target)
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


async def test_the_oldest_idle_connection_makes_room(small_target: Target) -> None:
    with small_target.watched() as seen:
        async with lines(small_target, 200, b"") as opened:
            await still_there(small_target)
            assert await status(opened[0]) == 0
    seen.check_healthy()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "half a hello"])
async def test_connections_without_a_handshake_leave_room_for_others(
    tls_target: Target, said: bytes
) -> None:
    """Nobody counted them, and they took every file that the process may open."""
    with tls_target.watched() as seen:
        async with lines(tls_target, 2 * FEW_FILES, said, source="127.0.0.3") as opened:
            await still_there(tls_target)
            assert await status(opened[0]) == 0
            patience.until(lambda: tls_target.open_files() < FEW_FILES / 2, "sockets are closed")
    seen.check_healthy()


async def test_a_handshake_that_fails_leaves_nothing(tls_target: Target) -> None:
    before = tls_target.open_files()
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with lines(tls_target, 100, request) as opened:
        for line in opened:
            await status(line)
    await still_there(tls_target)
    patience.until(lambda: tls_target.open_files() <= before + 5, "sockets are closed")


async def test_a_silent_socket_is_closed_by_grpc(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took the process's files for two minutes, and HTTP was refused."""
    monkeypatch.setattr(channel, "HANDSHAKE_MS", 200)
    face = GrpcFace(engine)
    reader, writer = await asyncio.open_connection("127.0.0.1", await face.start("127.0.0.1", 0))
    async with patience.timeout(30):
        await reader.read()
    writer.close()
    await face.stop(1)


def test_a_server_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    """The usual 1,024 left 768 connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        service = processes.server(tmp_path, "--db-url", "memory://", "--worker-concurrency", "0")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with service:
        service.line("ready")
        allowed, _ = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    assert allowed == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


async def test_one_address_does_not_take_the_place_of_another(small_target: Target) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with lines(small_target, 5, request, source="127.0.0.2") as quiet:
        assert [await status(line) for line in quiet] == [200] * 5
        async with lines(small_target, 200, b"", source="127.0.0.3"):
            await still_there(small_target)
            for reader, writer in quiet:
                await reader.readuntil(b"ok\n")
                writer.write(request)
            assert [await status(line) for line in quiet] == [200] * 5


async def test_requests_that_are_sent_ahead_are_bounded(target: Target) -> None:
    """Each is an object of the server before the one in front of it is answered."""
    large = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    small = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with target.watched() as seen:
        async with lines(target, 30, large * 4 + small * 6_000):
            await still_there(target)
    assert seen.grown_mib < 100
    seen.check_healthy()


BUNDLE = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
DESCRIPTION = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


def unread(port: int, tls: ssl.SSLContext | None = None, said: bytes = BUNDLE) -> socket.socket:
    """A connection that asks for a large file and takes next to nothing of it."""
    plain = socket.socket()
    # Short segments, so that the system does not keep the answer for the server.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    plain.settimeout(patience.longest(30))
    plain.connect(("127.0.0.1", port))
    line = plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")
    line.sendall(said)
    return line


def is_closed(line: socket.socket) -> bool:
    """Whether the server takes no more: what it sent before may still be there to read."""
    try:
        line.send(b"\r\n")
    except ConnectionError:
        return True
    return False


def test_a_file_that_is_not_read_takes_little_memory(tls_target: Target) -> None:
    """Before, each connection over TLS held all of it. Nobody needs a key to ask."""
    with ExitStack() as stack, tls_target.watched() as seen:
        for _ in range(50):
            stack.enter_context(unread(tls_target.http_port, tls_target.tls))
        tls_target.ask("GET", "/docs/swagger-ui-bundle.js", {})
    assert seen.grown_mib < 40
    seen.check_healthy()


async def test_descriptions_that_are_not_read_take_little_memory(target: Target) -> None:
    """Before, each connection had a copy of its own. Nobody needs a key to ask."""
    target.ask("GET", "/openapi.json", {})
    with ExitStack() as stack, target.watched() as seen:
        for _ in range(800):
            line = await asyncio.to_thread(unread, target.http_port, said=DESCRIPTION)
            stack.enter_context(line)
        await settled(target)
    assert seen.grown_mib < 35
    seen.check_healthy()


async def test_short_answers_that_are_not_read_are_counted(target: Target) -> None:
    """Before, two that fit into a connection's buffer counted as read."""
    body = json.dumps({"payload": "x" * 60_000})
    code, text = await asyncio.to_thread(target.ask, "POST", "/jobs", headers("client"), body)
    assert code == 202, text
    said = (
        f"GET /jobs/{json.loads(text)['job_id']} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {KEYS['client']}\r\n\r\n"
    ).encode()
    with ExitStack() as stack, target.watched() as seen:
        for _ in range(1_500):
            line = await asyncio.to_thread(unread, target.http_port, said=2 * said)
            stack.enter_context(line)
        await settled(target)
    assert seen.grown_mib < 100
    seen.check_healthy()


def test_strangers_that_leave_before_their_answers_fill_no_log(target: Target) -> None:
    """Before, each of them wrote two errors with their tracebacks."""
    files = target.open_files()
    for _ in range(20):
        with unread(target.http_port, said=2 * BUNDLE) as line:
            line.recv(12)
            # Closing resets it.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    patience.until(lambda: target.open_files() <= files, "the connections' end")
    target.ask("GET", "/healthz", {})
    errors = [line for line in target.service.lines if line["level"] == "ERROR"]
    assert [line["message"] for line in errors] == []


async def test_a_connection_whose_answer_is_not_read_is_closed() -> None:
    engine = Engine(MemoryStore())
    await engine.start()
    face = HttpFace(engine, HttpFaceSettings(read_timeout=0.2))
    port = await face.start("127.0.0.1", 0)
    try:
        with await asyncio.to_thread(unread, port) as line:
            line.sendall(9 * BUNDLE)  # more than the system's own buffers hold
            await asyncio.to_thread(patience.until, lambda: is_closed(line), "the connection's end")
    finally:
        await face.stop(1.0)
        await engine.stop()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_a_client_that_is_still_sending_reads_why_it_was_refused(
    target: Target, tls_target: Target, secure: bool
) -> None:
    """Before, what it sent after the refusal reset the connection, and the answer was lost."""
    shown = tls_target if secure else target
    reader, writer = await asyncio.open_connection("127.0.0.1", shown.http_port, ssl=shown.tls)
    writer.write(b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 200)
    async with patience.timeout(30):
        first = await reader.readuntil(b"\r\n")
        for _ in range(50):
            writer.write(b"a: b\r\n" * 200)
            await writer.drain()
        answer = await reader.read()
    writer.transport.abort()
    assert first.startswith(b"HTTP/1.1 431 ")
    assert answer.endswith(b'"}}')


def test_a_client_that_is_refused_may_not_send_for_ever(target: Target) -> None:
    line = socket.create_connection(("127.0.0.1", target.http_port))
    with line:
        line.settimeout(patience.longest(30))
        line.sendall(b"this is not HTTP\r\n\r\n")
        with pytest.raises(ConnectionError):
            line.sendall(bytes(512 * MIB))


async def test_a_refusal_never_stands_amid_the_answer_to_an_earlier_request(target: Target) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.http_port)
    writer.write(watching(submitted(target, "client"), "client"))
    async with patience.timeout(30):
        read = await reader.readuntil(b"PENDING")
        writer.write(b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 200)
        with contextlib.suppress(ConnectionError):
            read += await reader.read()
    writer.transport.abort()
    assert b"431" not in read


UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
STATUS_LINE = re.compile(rb"HTTP/1\.1 [1-5]\d\d ")
HIDDEN = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def said_to(target: Target, *parts: bytes) -> bytes:
    """The answers to what is sent on one connection, a part at a time, until the server ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.http_port)
    heard = b""
    try:
        with contextlib.suppress(OSError):  # the server has ended it
            for part in parts:
                writer.write(part)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        heard += await reader.read(65_536)
            writer.write_eof()
            async with patience.timeout(30):
                heard += await reader.read()
    finally:
        writer.transport.abort()
    return heard


@pytest.mark.parametrize(
    "framing", [f"Content-Length: {len(HIDDEN)}", "Transfer-Encoding: chunked"]
)
async def test_the_body_of_a_request_that_upgrades_is_no_request(
    target: Target, framing: str
) -> None:
    """Before, it was: behind a proxy it could take the credential of the next caller."""
    head = "POST /jobs HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE + framing + "\r\n"
    shown = f"Authorization: Bearer {KEYS['client']}\r\n\r\n"
    heard = await said_to(target, (head + shown).encode(), HIDDEN)
    assert len(STATUS_LINE.findall(heard)) == 1
    assert heard.startswith(b"HTTP/1.1 400 ")
    assert b"Upgrade" in heard


async def test_what_follows_a_request_that_upgrades_is_no_request(target: Target) -> None:
    """The other side may speak another protocol from there on."""
    head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE + "\r\n"
    heard = await said_to(target, head.encode(), HIDDEN)
    assert len(STATUS_LINE.findall(heard)) == 1
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in heard.lower()
