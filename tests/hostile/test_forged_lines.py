"""What a text from elsewhere says cannot look like a line of ours, nor command a terminal.

And a stranger cannot fill the log.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest
import typer

from jobqueue import JobQueue
from jobqueue.api.grpc.channel import KIB
from jobqueue.cli import ctl_events, display, program
from jobqueue.core.errors import Code, JobFailed
from jobqueue.core.job import Event, JobSpec
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.progress import Progress
from jobqueue.core.stream import JobEvent
from jobqueue.pb.jq.v1 import client_pb2
from tests import patience
from tests.hostile.frames import Frames
from tests.hostile.known_callers import over_grpc, serving

pytestmark = pytest.mark.req("inp:PROD")

FORGED = "2026-01-01 03:00:00 INFO jobqueue.worker job 7 succeeded"
ESCAPE, C1, RIGHT_TO_LEFT = "\x1b[2J", "\x9b2J", "\u202e"
HOSTILE = f"boom\r{FORGED}\n{FORGED}\u2028{FORGED}{ESCAPE}{C1}{RIGHT_TO_LEFT}"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The log of a program that has its own logging, as the standard library writes it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("jobqueue.worker")
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def assert_harmless(text: str) -> None:
    assert "boom" in text
    for line in text.splitlines():  # at each character that ends a line for somebody
        assert not line.startswith("2026-01-01"), text
    assert not set(text) & {"\r", "\x1b", "\x9b", "\u2028", "\u202e"}


class Refused(Exception):
    """An error of a handler."""


@pytest.mark.parametrize("lines", [HOSTILE, f"boom {ESCAPE}"])
async def test_a_failed_attempt_is_one_line_and_an_indented_traceback(
    written: io.StringIO, lines: str
):
    app = JobQueue("memory://")

    @app.task(max_retries=0)
    async def fail() -> None:
        raise Refused(lines)

    async with app, app.worker():
        handle = await fail.submit()
        with pytest.raises(JobFailed):
            await handle.result(patience.longest(60))
    assert_harmless(written.getvalue())


def event(detail: str) -> JobEvent:
    return JobEvent(
        Event("id", 5, State.RUNNING, State.FAILED, Reason.HANDLER_FAILED, 1.0, 1, "w", detail, "q")
    )


def test_an_event_of_the_tail_is_one_line():
    assert_harmless(ctl_events.line_of(event(HOSTILE)))
    assert "\n" not in ctl_events.line_of(event(HOSTILE))


def test_json_on_a_terminal_commands_nothing(capsys: pytest.CaptureFixture[str]):
    display.print_json({"error": HOSTILE})
    program.report(HOSTILE, Code.INTERNAL, as_json=True)
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert_harmless(text)
    assert json.loads(shown.out)["error"] == HOSTILE
    assert json.loads(shown.err)["error"]["message"] == HOSTILE


def test_tables_and_fields_command_nothing(capsys: pytest.CaptureFixture[str]):
    display.print_table(["NAME", "ERROR"], [[f"boom{ESCAPE}", HOSTILE]], "none")
    display.print_fields([("Error", HOSTILE)])
    typer.echo(display.progress_line(Progress(None, HOSTILE)))
    assert_harmless(capsys.readouterr().out)


def test_further_lines_of_an_error_are_indented(capsys: pytest.CaptureFixture[str]):
    program.report(f"job 7 was dead-lettered: {HOSTILE}\nerror: run this", Code.JOB_FAILED)
    shown = capsys.readouterr().err
    assert_harmless(shown)
    first, *further = shown.splitlines()
    assert first.startswith("error: job 7")
    assert further
    assert all(line.startswith(" " * len("error: ")) for line in further)


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"\x16\x03\x01 this is TLS\r\n\r\n", b"HTTP/1.1 400 "),
        (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"HTTP/1.1 ",
        ),
    ],
    ids=["not HTTP", "upgrade"],
)
async def test_what_a_stranger_says_to_http_is_no_line_of_the_log(
    said: bytes, answered: bytes, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with serving() as server:
        address = httpx.URL(server.http_url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(said)
        assert (await patience.wait_for(reader.readline(), 30)).startswith(answered)
        writer.close()
    assert [line.message for line in caplog.records if line.levelno > logging.INFO] == []


async def test_callers_that_leave_while_they_are_answered_fill_no_log(
    caplog: pytest.LogCaptureFixture,
):
    """gRPC wrote an error with its traceback for each of them."""
    async with serving(known=False) as server:
        async with over_grpc(server, "web") as backend:
            (result,) = await backend.submit([JobSpec(payload=b"x" * 500 * KIB)])
        request = client_pb2.GetJobRequest(job_id=result.unwrap()).SerializeToString()
        async with Frames(server.grpc_target, "client") as frames:
            stream = await frames.call("/jq.v1.ClientService/GetJob", request)
            async with patience.timeout(30):
                while stream not in frames.answered:
                    await frames.moved()
    assert [line.message for line in caplog.records if line.levelno > logging.WARNING] == []
