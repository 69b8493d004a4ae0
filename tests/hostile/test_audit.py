"""The audit log: a line for every change and for every refused credential, and no secret in it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.protobuf import descriptor_pool, message_factory

from jobqueue import logs
from jobqueue.access.rules import GRPC, HTTP, RULES
from jobqueue.cli import server as program
from jobqueue.core.errors import JobQueueError
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec
from jobqueue.taskqueue.components.model import Spec
from tests import patience
from tests.hostile.known_callers import key_of, over_grpc, over_http, over_taskqueue, serving

pytestmark = pytest.mark.req("inp:PROD")

PAYLOAD = "a payload that nobody else may see"
WRONG = "a-wrong-key-0123456789"
SERVED = [
    method
    for method, action in GRPC.items()
    if RULES[action].changes and method.startswith(("/jq.v1.", "/taskqueue.v1."))
]
# Those of the console take forms of its pages (test_console.py).
ROUTES = [
    route
    for route, action in HTTP.items()
    if RULES[action].changes and not route[1].startswith("/ui/")
]


class Lines(logging.Handler):
    """What the audit log has, as a program reads it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logs.JsonFormatter("test"))
        self.records: list[logging.LogRecord] = []
        self.text: list[str] = []
        self._written = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.text.append(self.format(record))
        self._written.set()

    async def until(self, count: int) -> None:
        """Wait for that many lines."""
        async with patience.timeout(60):
            while len(self.text) < count:
                self._written.clear()
                await self._written.wait()

    def take(self) -> list[dict[str, Any]]:
        """The lines since the last time."""
        found, self.text = self.text, []
        return [json.loads(line) for line in found]


@pytest.fixture
def audited() -> Iterator[Lines]:
    logger = logging.getLogger("jobqueue.audit")
    lines, level = Lines(), logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(level)


def told(line: dict[str, Any]) -> tuple[str, str, str, str]:
    assert line["logger"] == "jobqueue.audit"
    assert line["address"] == "127.0.0.1"
    return line["caller"], line["action"], line["object"], line["outcome"]


async def test_changes_over_http_are_written(audited: Lines):
    async with serving() as server, over_http(server, "ops") as ops:
        await ops.post("/queues", json={"name": "mail"})
        await ops.post("/queues", json={"name": "mail"})
        job_id = (await ops.post("/jobs", json={"payload": PAYLOAD})).json()["job_id"]
        await ops.get(f"/jobs/{job_id}")
        await ops.post(f"/jobs/{job_id}/cancel")
        await ops.delete("/queues/none")
        await ops.post("/dlq/retry", params={"queue": "mail"})
        assert PAYLOAD not in "".join(audited.text)
        assert key_of("ops") not in "".join(audited.text)
        assert [told(line) for line in audited.take()] == [
            ("ops", "queue.create", "mail", "OK"),
            ("ops", "queue.create", "mail", "ALREADY_EXISTS"),
            ("ops", "job.cancel", job_id, "OK"),
            ("ops", "queue.delete", "none", "NOT_FOUND"),
            ("ops", "job.retry_all", "mail", "OK"),
        ]


async def test_changes_over_grpc_and_taskqueue_are_written(audited: Lines):
    async with serving() as server, over_grpc(server, "ops") as ops:
        (made,) = await ops.submit([JobSpec(payload=PAYLOAD.encode())])
        await ops.get(made.job_id)
        await ops.cancel(made.job_id)
        await ops.pause_queue("default")
        with pytest.raises(Exception, match="no queue"):
            await ops.delete_queue("none")
        async with over_taskqueue(server, "web") as web:
            task = await web.submit(Spec("a"), "")
            await web.cancel(task.job_id, "changed my mind")
        assert PAYLOAD not in "".join(audited.text)
        assert [told(line) for line in audited.take()] == [
            ("ops", "job.cancel", made.job_id, "OK"),
            ("ops", "queue.pause", "default", "OK"),
            ("ops", "queue.delete", "none", "NOT_FOUND"),
            ("web", "queue.create", "taskqueue", "OK"),
            ("web", "job.cancel", task.job_id, "OK"),
        ]


@pytest.mark.parametrize(
    ("name", "in_text"),
    [
        ("redis://me:word@host", "redis://me:word@host"),
        ("a\\x1b", "a\\x1b"),
        ("token=x", '"token=x"'),
        ("password=a b", '"password=a b"'),
        ("Bearer 0123456789", '"Bearer 0123456789"'),
        ("é]", '"é]"'),
        ('a"b', r'"a\"b"'),
        (
            "a outcome=OK]  [caller=boss action=queue.delete object=mail",
            '"a outcome=OK]  [caller=boss action=queue.delete object=mail"',
        ),
        (
            'a" outcome=OK]  [caller="boss" object=mail',
            r'"a\" outcome=OK]  [caller=\"boss\" object=mail"',
        ),
    ],
)
async def test_an_object_is_named_as_the_caller_named_it(audited: Lines, name: str, in_text: str):
    """What the log hides in other lines would hide here which worker it was."""
    async with serving() as server, over_grpc(server, "ops") as ops:
        with pytest.raises(JobQueueError):
            await ops.drain_worker(name)
        (record,) = audited.records
        assert [told(line) for line in audited.take()] == [
            ("ops", "worker.drain", name, "NOT_FOUND")
        ]
    assert f" object={in_text} outcome=NOT_FOUND]" in logs.TextFormatter().format(record)


async def test_a_caller_that_leaves_in_the_middle_of_a_request_is_written(audited: Lines):
    async with serving() as server:
        address = httpx.URL(server.http_url)
        _, writer = await asyncio.open_connection(address.host, address.port)
        head = (
            f"PATCH /queues/mail HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key_of('ops')}\r\n"
            "Content-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        )
        writer.write(head.encode() + b'{"max')
        await writer.drain()
        writer.close()
        await audited.until(1)
        assert [told(line) for line in audited.take()] == [
            ("ops", "queue.update", "mail", "ABANDONED")
        ]


async def test_a_server_that_asks_nobody_writes_addresses(audited: Lines):
    async with serving(known=False) as server, over_http(server, None) as client:
        await client.post("/queues/default/pause")
        channel = grpc.aio.insecure_channel(server.grpc_target)
        async with channel:
            await called(channel, "/jq.v1.OperatorService/PauseQueue", [], name="default")
        expected = ("", "queue.pause", "default", "OK")
        assert [told(line) for line in audited.take()] == [expected, expected]


async def called(
    channel: grpc.aio.Channel, method: str, metadata: list[tuple[str, str]], **fields: Any
) -> str:
    """Call a method by its name; returns the code."""
    name = method[1:].replace("/", ".")
    found = descriptor_pool.Default().FindMethodByName(name)
    request = message_factory.GetMessageClass(found.input_type)(**fields)
    options: Any = {
        "request_serializer": lambda message: message.SerializeToString(),
        "response_deserializer": bytes,
    }
    limit = patience.longest(30)
    try:
        if found.client_streaming:
            stream = channel.stream_stream(method, **options)(
                metadata=tuple(metadata), timeout=limit
            )
            await stream.write(request)
            await stream.done_writing()
            async for _ in stream:
                pass
        else:
            await channel.unary_unary(method, **options)(
                request, metadata=tuple(metadata), timeout=limit
            )
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@pytest.mark.parametrize("method", SERVED)
async def test_every_method_that_changes_something_has_its_line(audited: Lines, method: str):
    caller = "night" if "WorkerService" in method else "ops"
    async with serving() as server:
        channel = grpc.aio.insecure_channel(server.grpc_target)
        async with channel:
            await called(channel, method, [("x-api-key", key_of(caller))])
        await audited.until(1)
        (line,) = audited.take()
    assert (line["caller"], line["action"]) == (caller, GRPC[method])


@pytest.mark.parametrize(("verb", "route"), ROUTES)
async def test_every_route_that_changes_something_has_its_line(
    audited: Lines, verb: str, route: str
):
    path = route.format(job_id=new_job_ids(1)[0], name="none", worker_id="none")
    async with serving() as server, over_http(server, "ops") as ops:
        await ops.request(verb, path, json={"name": "made"} if verb != "DELETE" else None)
        (line,) = audited.take()
    assert (line["caller"], line["action"]) == ("ops", HTTP[verb, route])


async def test_refused_credentials_are_written_and_counted_on_both_faces(audited: Lines):
    async with serving() as server:
        async with over_http(server, None, **{"X-API-Key": WRONG}) as stranger:
            assert (await stranger.delete("/queues/default")).status_code == 401
        async with over_http(server, "web") as web:
            assert (await web.delete("/queues/default")).status_code == 403
        channel = grpc.aio.insecure_channel(server.grpc_target)
        async with channel:
            method = "/jq.v1.OperatorService/DeleteQueue"
            assert await called(channel, method, [("x-api-key", WRONG)]) == "UNAUTHENTICATED"
            assert await called(channel, method, []) == "UNAUTHENTICATED"
            given = [("x-api-key", key_of("web"))]
            assert await called(channel, method, given) == "PERMISSION_DENIED"
        assert WRONG not in "".join(audited.text)
        assert [told(line) for line in audited.take()] == [
            ("", "queue.delete", "", "UNAUTHENTICATED"),
            ("web", "queue.delete", "", "PERMISSION_DENIED"),
            ("", "queue.delete", "", "UNAUTHENTICATED"),
            ("", "queue.delete", "", "UNAUTHENTICATED"),
            ("web", "queue.delete", "", "PERMISSION_DENIED"),
        ]
        async with over_http(server, "ops") as ops:
            figures = (await ops.get("/metrics")).text
        assert 'jq_auth_failures_total{face="http"} 1.0' in figures
        assert 'jq_auth_failures_total{face="grpc"} 2.0' in figures


async def guess(client: httpx.AsyncClient, n: int) -> int:
    response = await client.get("/queues", headers={"X-API-Key": f"{WRONG}-{n}"})
    return response.status_code


async def test_guessing_is_slow_and_a_valid_key_gets_in_at_once(audited: Lines):
    """Both from one address: the guesses wait for their answers, the valid key does not."""
    async with serving() as server, over_http(server, None) as stranger:
        guessing = asyncio.ensure_future(guesses(stranger, 40))
        await audited.until(10)
        async with over_http(server, "ops") as ops:
            for _ in range(20):
                assert (await ops.get("/queues")).status_code == 200
        assert not guessing.done()  # it has sent nothing that was not answered
        guessing.cancel()
        await asyncio.gather(guessing, return_exceptions=True)
        lines = audited.take()
        assert {line["outcome"] for line in lines} == {"UNAUTHENTICATED"}


async def guesses(client: httpx.AsyncClient, count: int) -> None:
    for n in range(count):
        assert await guess(client, n) == 401


@pytest.mark.parametrize("there", [False, True])
async def test_the_audit_file_has_json_lines_for_its_owner_only(tmp_path: Path, there: bool):
    """As an operator sets it up: beside the log, whatever the level of that is."""
    file = tmp_path / "audit.log"
    if there:
        file.touch()
        file.chmod(0o644)
    umask = os.umask(0)
    logs.configure("jq-server", "error", "text", audit_file=str(file))
    try:
        async with serving() as server, over_http(server, "ops") as ops:
            await ops.post("/queues/default/pause")
            await ops.post("/queues/default/resume")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(line["action"], line["outcome"]) for line in lines] == [
            ("queue.pause", "OK"),
            ("queue.resume", "OK"),
        ]
        assert file.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)
        logs.configure("test", "info", "text")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("audit.log", ""),
        ("nowhere/audit.log", "cannot be created"),
        ("folder", "Is a directory"),
        ("link", "Too many levels of symbolic links"),
    ],
)
def test_a_dry_run_says_whether_the_audit_log_can_be_written(
    tmp_path: Path, file: str, said: str, capsys: pytest.CaptureFixture[str]
):
    """A start would fail for it; the dry run makes no file to find out."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    flags = ["--dry-run", "--db-url", "memory://", "--http-port", "0", "--grpc-port", "0"]
    status = program.run([*flags, "--set", f"log.audit_file={tmp_path / file}"])
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("audit ")]
    assert status == (1 if said else 0), out
    assert ("failing" in line, said in line) == (bool(said), True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]
