"""The port of a scheduler or a worker, whose only pages are /metrics and /healthz."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from jobqueue.access.audit import BURST
from jobqueue.access.callers import EVERY_ROLE
from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.policy import Access
from jobqueue.access.tls import ServerTls
from jobqueue.api.listening import Endpoint
from jobqueue.server.metrics_listener import MetricsListener
from tests import patience
from tests.access.certificates import Authority
from tests.hostile.target import API_KEYS, headers
from tests.services.topics import Topics
from tests.streaming.system import System

MOST = 16  # connections
FIGURES = b"jq_up 1\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ServerTls:
    ours = authority.issue("server", "IP:127.0.0.1")
    return ServerTls(ours.cert, ours.key, authority.ca)


async def render() -> tuple[bytes, str]:
    return FIGURES, "text/plain"


def asks_for_keys() -> Access:
    return Access(keys=Keyring(parse_keys(API_KEYS.split(","), "auth.api_keys")))


@asynccontextmanager
async def listening(listener: MetricsListener) -> AsyncIterator[int]:
    port = await listener.start(Endpoint("127.0.0.1", 0, "host", "port"))
    try:
        yield port
    finally:
        await listener.stop()


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def lines(port: int, count: int, said: bytes = b"") -> AsyncIterator[list[Line]]:
    """So many connections that have said the same."""
    opened: list[Line] = []
    try:
        for _ in range(count):
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            opened[-1][1].write(said)
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def heard(line: Line) -> bytes:
    """All that a connection was told until it was closed."""
    async with patience.timeout(30):
        try:
            return await line[0].read()
        except ConnectionError:
            return b""


async def asked(
    port: int, path: str, credential: dict[str, str] | None = None, *, ca: Path | None = None
) -> httpx.Response:
    """The answer to one request, over TLS if an authority is named."""
    verify: ssl.SSLContext | bool = True
    if ca is not None:
        verify = ssl.create_default_context(cafile=str(ca))
    async with httpx.AsyncClient(
        verify=verify, trust_env=False, timeout=patience.longest(30)
    ) as client:
        scheme = "http" if ca is None else "https"
        return await client.get(f"{scheme}://127.0.0.1:{port}{path}", headers=credential or {})


async def test_a_scheduler_keeps_its_figures_for_operators(
    redis_url: str, kafka: Topics, authority: Authority, tls: ServerTls
) -> None:
    """As the API does: over TLS, with a key."""
    system = System(redis_url, kafka)
    secured = {"tls.cert": str(tls.cert), "tls.key": str(tls.key), "auth.api_keys": API_KEYS}
    try:
        scheduler = await system.server("scheduler", **secured)
        assert scheduler.http_url.startswith("https://")
        port = int(scheduler.http_url.rpartition(":")[2])
        with pytest.raises(httpx.TransportError):
            await asked(port, "/metrics")
        assert (await asked(port, "/healthz", ca=authority.ca)).status_code == 200
        refused = await asked(port, "/metrics", ca=authority.ca)
        assert (refused.status_code, "jq_" in refused.text) == (401, False)
        shown = await asked(port, "/metrics", headers("operator"), ca=authority.ca)
        assert 'jq_auth_failures_total{face="http"} 1.0' in shown.text
    finally:
        await system.stop()


@pytest.mark.parametrize(
    ("credential", "status"),
    [
        ({}, 401),
        ({"X-API-Key": "a-wrong-key-0123456789"}, 401),
        (headers("client"), 403),
        (headers("worker"), 403),
        (headers("operator"), 200),
        (headers("monitor"), 200),
        ({**headers("operator"), "X-API-Key": "another-0123456789"}, 401),
    ],
)
async def test_the_figures_take_the_role_monitor_or_operator(
    credential: dict[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobqueue.audit")
    async with listening(MetricsListener(render, access=asks_for_keys())) as port:
        answer = await asked(port, "/metrics", credential)
        assert answer.status_code == status
        assert (answer.content == FIGURES) == (status == 200)
        assert ("WWW-Authenticate" in answer.headers) == (status == 401)
        assert (await asked(port, "/healthz", credential)).status_code == 200
    written = [vars(record) for record in caplog.records if record.name == "jobqueue.audit"]
    outcomes = {401: ["UNAUTHENTICATED"], 403: ["PERMISSION_DENIED"], 200: []}
    assert [line["outcome"] for line in written] == outcomes[status]
    assert {(line["action"], line["address"]) for line in written} <= {
        ("server.metrics", "127.0.0.1")
    }


async def test_a_certificate_is_a_name_here_too(authority: Authority, tls: ServerTls) -> None:
    access = Access(certificates=True, certificate_roles={"scraper": EVERY_ROLE})
    async with listening(MetricsListener(render, access=access, tls=tls)) as port:
        for name, status in (("scraper", 200), ("somebody", 403)):
            pair = authority.issue(name)
            context = ssl.create_default_context(cafile=str(authority.ca))
            context.load_cert_chain(pair.cert, pair.key)
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                answer = await client.get(f"https://127.0.0.1:{port}/metrics")
            assert answer.status_code == status, name
        assert (await asked(port, "/metrics", ca=authority.ca)).status_code == 401


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\n"])
async def test_silent_sockets_keep_no_probe_out(said: bytes) -> None:
    async with (
        listening(MetricsListener(render)) as port,
        lines(port, MOST, said) as silent,
    ):
        assert (await asked(port, "/healthz")).status_code == 200
        assert await heard(silent[0]) == b""  # the oldest one made room
        silent[1][1].write(b"GET /healthz HTTP/1.1\r\n\r\n" if not said else b"\r\n")
        assert (await heard(silent[1])).startswith(b"HTTP/1.1 200")
        assert (await asked(port, "/metrics")).content == FIGURES


async def test_sockets_without_a_handshake_keep_no_probe_out(
    authority: Authority, tls: ServerTls
) -> None:
    async with (
        listening(MetricsListener(render, tls=tls)) as port,
        lines(port, 3 * MOST) as silent,
    ):
        assert (await asked(port, "/healthz", ca=authority.ca)).status_code == 200
        for line in silent[: 2 * MOST]:
            assert await heard(line) == b""


async def test_those_who_guess_keys_keep_no_probe_out() -> None:
    """Their answers wait."""
    guess = b"GET /metrics HTTP/1.1\r\nX-API-Key: a-wrong-key-0123456789\r\n\r\n"
    async with (
        listening(MetricsListener(render, access=asks_for_keys())) as port,
        lines(port, BURST + 2 * MOST, guess),
    ):
        assert (await asked(port, "/healthz")).status_code == 200


async def test_figures_that_take_long_keep_no_probe_out() -> None:
    """The store hangs, and everybody asks."""
    go_on = asyncio.Event()

    async def slowly() -> tuple[bytes, str]:
        await go_on.wait()
        return await render()

    ask = b"GET /metrics HTTP/1.1\r\n\r\n"
    async with (
        listening(MetricsListener(slowly)) as port,
        lines(port, 2 * MOST, ask) as asking,
    ):
        assert (await asked(port, "/healthz")).status_code == 200
        go_on.set()
        answers = [await heard(line) for line in asking]
        assert answers[0].endswith(FIGURES)  # it was not closed for another
        assert any(b" 503 " in answer and b"Retry-After: 1" in answer for answer in answers)


async def test_who_closes_their_side_is_answered() -> None:
    async with (
        listening(MetricsListener(render)) as port,
        lines(port, 1, b"GET /metrics HTTP/1.1\r\n\r\n") as (line,),
    ):
        line[1].write_eof()
        assert (await heard(line)).endswith(FIGURES)
