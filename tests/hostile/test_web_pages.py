"""What a web page elsewhere can do through a visitor's browser: DNS rebinding, cross-site requests.

The browser sends what the page asks for and adds the headers that say where the page comes from.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jobqueue.api.listening import Endpoint
from jobqueue.server.metrics_listener import MetricsListener
from tests import patience
from tests.cli.processes import Service
from tests.cli.processes import server as start_server

KEY = "a-key-of-a-client-0123456789"
JSON = "application/json"
SPEC = json.dumps({"payload": 1})
FORM = "application/x-www-form-urlencoded"
BODIES_OF_FORMS = [
    "text/plain",
    "text/plain;charset=UTF-8",
    " Text/Plain ; a=b",
    FORM,
    "multipart/form-data; boundary=x",
]


class Answer:
    """An answer: its status, headers and text."""

    def __init__(self, heard: http.client.HTTPResponse) -> None:
        self.status = heard.status
        self.headers = heard.headers
        self.text = heard.read().decode()

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)["error"]
        return found


class Site:
    """A running jq-server, asked with exactly the headers that are given."""

    def __init__(self, service: Service) -> None:
        parts = urlsplit(service.line("ready")["http"])
        assert parts.hostname is not None
        assert parts.port is not None
        self.port = parts.port

    def ask(
        self, method: str, path: str, *headers: tuple[str, str], body: str | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=patience.longest(20)
        )
        try:
            given = {name.lower() for name, _ in headers}
            connection.putrequest(method, path, skip_host="host" in given)
            for name, value in headers:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(None if body is None else body.encode())
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def submit(self, *headers: tuple[str, str]) -> Answer:
        return self.ask("POST", "/jobs", *headers, body=SPEC)

    def jobs(self) -> int:
        return len(json.loads(self.ask("GET", "/jobs?limit=100").text)["jobs"])


def serving(folder: Path, *args: str, **extra: str) -> Iterator[Site]:
    flags = ("--db-url", "memory://", "--worker-concurrency", "0", *args)
    with start_server(folder, *flags, **extra) as service:
        yield Site(service)
        assert service.stop() == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The default server: on loopback, everybody may call."""
    yield from serving(tmp_path_factory.mktemp("default"))


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """It has a name of its own, and is open to the network without keys."""
    yield from serving(
        tmp_path_factory.mktemp("named"),
        *("--http-host", "0.0.0.0", "--set", "server.insecure=true"),
        *("--set", "http.allowed_hosts=queue.example,Other.example"),
    )


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Callers show keys; it stands behind a load balancer with a name that it was not told."""
    yield from serving(
        tmp_path_factory.mktemp("keyed"),
        *("--http-host", "0.0.0.0"),
        JQ_AUTH_API_KEYS=f"web:client+operator:{KEY}",
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1].evil.example",
        "10.0.0.1",
        "",
        "user@localhost",
        "localhost:80:80",
        "localhost,evil.example",
    ],
)
def test_a_name_that_is_not_the_servers_is_refused(site: Site, host: str) -> None:
    host = host.format(port=site.port)
    before = site.jobs()
    for method, path, body in [("GET", "/status", None), ("GET", "/healthz", None),
                               ("GET", "/docs", None), ("POST", "/jobs", SPEC)]:  # fmt: skip
        answer = site.ask(method, path, ("Host", host), body=body)
        assert (answer.status, answer.error["code"]) == (403, "PERMISSION_DENIED"), path
        assert "http.allowed_hosts" in answer.error["message"]
    assert site.jobs() == before


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.:{port}", "127.0.0.1:{port}", "127.9.9.9", "[::1]:{port}"],
)
def test_names_of_this_machine_are_served(site: Site, host: str) -> None:
    assert site.ask("GET", "/status", ("Host", host.format(port=site.port))).status == 200


def test_a_second_host_header_does_not_help(site: Site) -> None:
    answer = site.ask("GET", "/status", ("Host", "localhost"), ("Host", "evil.example"))
    assert answer.status in (400, 403)


def test_a_client_that_is_no_browser_needs_no_host(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), patience.longest(10)) as talk:
        talk.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert talk.makefile("rb").readline().startswith(b"HTTP/1.1 200")


def test_names_are_added_by_a_setting(named: Site) -> None:
    for host in ("queue.example", "other.example:8443", "localhost", "192.0.2.7:8080"):
        assert named.ask("GET", "/status", ("Host", host)).status == 200, host
    for host in ("evil.example", "queue.example.evil.example"):
        assert named.ask("GET", "/status", ("Host", host)).status == 403, host
    ours = (("Host", "queue.example"), ("Content-Type", JSON))
    assert named.submit(*ours, ("Origin", "https://queue.example")).status == 202
    assert named.submit(*ours, ("Origin", "https://other.example")).status == 202
    assert named.submit(*ours, ("Origin", "https://evil.example")).status == 403


def test_a_server_with_keys_is_reached_by_any_name(keyed: Site) -> None:
    """A page that got there by rebinding has no key, and a load balancer may pass its own name."""
    host = ("Host", "balancer.example")
    shown = ("Authorization", f"Bearer {KEY}")
    assert keyed.ask("GET", "/healthz", host).status == 200
    assert keyed.ask("GET", "/status", host).status == 401
    assert keyed.ask("GET", "/status", host, shown).status == 200
    elsewhere = ("Origin", "https://evil.example")
    assert keyed.submit(host, shown, elsewhere, ("Content-Type", JSON)).status == 403


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:1", "http://localhost", "",
     "http://evil.example#localhost:{port}", "http://localhost:{port}.evil.example"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_foreign_origin_is_refused(site: Site, method: str, origin: str) -> None:
    before = site.jobs()
    headers = [("Host", f"localhost:{site.port}"), ("Origin", origin.format(port=site.port))]
    if method == "POST":
        answer = site.submit(*headers, ("Content-Type", JSON))
    else:
        answer = site.ask("GET", "/jobs", *headers)
    assert (answer.status, answer.error["code"]) == (403, "PERMISSION_DENIED")
    assert "Origin" in answer.error["message"]
    assert site.jobs() == before


def test_the_servers_own_origin_is_served(site: Site) -> None:
    """The page /docs sends requests from there."""
    for scheme in ("http", "https"):  # a proxy may speak TLS in its place
        own = ("Origin", f"{scheme}://localhost:{site.port}")
        host = ("Host", f"localhost:{site.port}")
        said = (host, own, ("Content-Type", JSON), ("Sec-Fetch-Site", "same-origin"))
        assert site.submit(*said).status == 202


@pytest.mark.parametrize("where", ["cross-site", "same-site", "anything"])
def test_requests_of_other_sites_pages_are_refused(site: Site, where: str) -> None:
    before = site.jobs()
    said = ("Sec-Fetch-Site", where)
    answers = [
        site.submit(said, ("Content-Type", JSON)),
        site.ask("GET", "/jobs", said),
        site.ask("GET", "/status", said, ("Sec-Fetch-Mode", "navigate")),
        site.ask("GET", "/docs", said),  # not by a click
        site.ask("POST", "/queues/default/pause", said),
    ]
    for answer in answers:
        assert (answer.status, answer.error["code"]) == (403, "PERMISSION_DENIED")
        assert where in answer.error["message"]
    assert site.jobs() == before
    queue = json.loads(site.ask("GET", "/queues/default").text)
    assert queue["paused"] is False


@pytest.mark.parametrize("where", ["same-origin", "none"])
def test_the_servers_own_pages_and_typed_addresses_are_served(site: Site, where: str) -> None:
    assert site.ask("GET", "/jobs", ("Sec-Fetch-Site", where)).status == 200


def test_a_link_elsewhere_leads_to_the_pages_for_people(site: Site) -> None:
    click = (
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Dest", "document"),
    )
    for path in ("/", "/docs"):
        assert site.ask("GET", path, *click).status == 200
        framed = (*click[:2], ("Sec-Fetch-Dest", "iframe"))
        assert site.ask("GET", path, *framed).status == 403
        assert site.ask("POST", path, *click).status == 403
    assert site.ask("GET", "/jobs", *click).status == 403


@pytest.mark.parametrize("kind", BODIES_OF_FORMS)
def test_what_a_page_can_send_unasked_is_not_read(site: Site, kind: str) -> None:
    before = site.jobs()
    said = ("Content-Type", kind)
    bodies = [("/jobs", SPEC), ("/jobs/batch", '{"jobs": [{"payload": 1}]}'), ("/queues", "{}"),
              ("/queues/default/pause", "")]  # fmt: skip
    for path, body in bodies:
        answer = site.ask("POST", path, said, body=body)
        assert (answer.status, answer.error["code"]) == (415, "INVALID_ARGUMENT"), path
        assert answer.error["field"] == "Content-Type"
        assert "-H 'Content-Type: application/json'" in answer.error["message"]
    patch = site.ask("PATCH", "/queues/default", said, body='{"max_retries": 1}')
    assert patch.status == 415
    two = site.submit(("Content-Type", JSON), said)
    assert two.status == 415
    assert site.jobs() == before
    assert json.loads(site.ask("GET", "/queues/default").text)["paused"] is False


@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8", None, "application/x"])
def test_what_programs_send_is_read(site: Site, kind: str | None) -> None:
    assert site.submit(*([("Content-Type", kind)] if kind else [])).status == 202


def test_every_answer_tells_browsers_to_take_it_for_nothing_else(site: Site, keyed: Site) -> None:
    answers = {
        "page": site.ask("GET", "/docs"),
        "script": site.ask("GET", "/docs/start.js"),
        "json": site.ask("GET", "/jobs"),
        "text": site.ask("GET", "/metrics"),
        "nothing": site.ask("GET", "/nothing"),
        "method": site.ask("PUT", "/jobs"),
        "host": site.ask("GET", "/jobs", ("Host", "evil.example")),
        "type": site.submit(("Content-Type", "text/plain")),
        "no key": keyed.ask("GET", "/status"),
        "below the application": site.ask("GET", "/jobs", ("X-Long", "y" * 80 * 1024)),
    }
    for name, answer in answers.items():
        assert answer.headers["X-Content-Type-Options"] == "nosniff", name
        assert answer.headers["X-Frame-Options"] == "DENY", name
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin", name
        [policy] = answer.headers.get_all("Content-Security-Policy", [])
        assert "default-src 'none'" in policy, name
        assert "frame-ancestors 'none'" in policy, name
        if name not in ("page", "script"):
            assert "script-src" not in policy, name


async def test_a_workers_metrics_are_not_for_pages_elsewhere() -> None:
    async def render() -> tuple[bytes, str]:
        return b"figures\n", "text/plain"

    async def ask(host: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /metrics HTTP/1.1\r\nhOST:{host}\r\n\r\n".encode())
        async with patience.timeout(10):
            heard = await reader.read()
        writer.close()
        return heard

    listener = MetricsListener(render)
    port = await listener.start(Endpoint("127.0.0.1", 0, "worker.metrics_host", ""))
    try:
        refused = await ask("evil.example")
        assert refused.startswith(b"HTTP/1.1 403")
        assert b"figures" not in refused
        assert b"nosniff" in refused
        assert b"figures" in await ask(f"localhost:{port}")
    finally:
        await listener.stop()
