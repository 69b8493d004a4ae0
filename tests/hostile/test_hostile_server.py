"""What a hostile server answers cannot command the terminal of jq-ctl.

On loopback, every local user may take the port of a server that is down.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from jobqueue.cli import ctl, display
from tests import patience

pytestmark = pytest.mark.req("inp:PROD")

COMMANDING = {"\x1b", "\x07", "\x9b", "\r"}
ESCAPE = "\x1b]0;hostile\x07\x9b2J\r"
_ID = "3f0c2a5e-8d1b-4f53-9a37-2b7d5f0c9e11"
_DEEPEST = 6

COMMANDS = [
    ("job", "submit", "default", '"x"'),
    ("job", "submit", "default", '"x"', "--key", "k"),
    ("job", "submit", "default", '"x"', "--count", "2"),
    ("job", "submit", "default", '"x"', "--wait", "--wait-timeout", "1"),
    ("job", "status", _ID),
    ("job", "logs", _ID),
    ("job", "list", "--limit", "1"),
    ("job", "cancel", _ID),
    ("job", "retry", _ID),
    ("job", "delete", _ID),
    ("job", "watch", _ID),
    ("dlq", "list", "--limit", "1"),
    ("dlq", "retry", _ID),
    ("dlq", "retry", "--all"),
    ("schedule", "list"),
    ("schedule", "show", "s"),
    ("schedule", "add", "s", "q", "1", "--every", "60"),
    ("schedule", "run-now", "s"),
    ("schedule", "pause", "s"),
    ("schedule", "remove", "s", "--yes"),
    ("queue", "create", "mail"),
    ("queue", "update", "mail", "--retry-profile", "producer"),
    ("queue", "list"),
    ("queue", "stats", "mail"),
    ("queue", "pause", "mail"),
    ("queue", "delete", "mail"),
    ("worker", "list", "--all"),
    ("worker", "drain", "w"),
    ("status",),
]


def filled(kind: Descriptor, depth: int = 0) -> Any:
    """A message of this type with a hostile text in each field that may have one."""
    made = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        inner = field.message_type
        if depth == _DEEPEST or (inner is not None and inner.name == "Error"):
            continue
        if inner is not None and inner.GetOptions().map_entry:
            if inner.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING:
                getattr(made, field.name)[ESCAPE] = _value(inner.fields_by_name["value"], depth)
        elif field.is_repeated:
            getattr(made, field.name).append(_value(field, depth))
        elif inner is not None:
            getattr(made, field.name).CopyFrom(_value(field, depth))
        else:
            setattr(made, field.name, _value(field, depth))
    return made


def _value(field: FieldDescriptor, depth: int) -> Any:
    if field.message_type is not None:
        return filled(field.message_type, depth + 1)
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.type == FieldDescriptor.TYPE_STRING:
        return ESCAPE
    if field.type == FieldDescriptor.TYPE_BYTES:
        return ESCAPE.encode()
    return 0 if field.type == FieldDescriptor.TYPE_BOOL else 1


class Hostile(grpc.GenericRpcHandler):
    """Answers each call of jq.v1 with hostile texts, or with an error that has such a text."""

    def __init__(self) -> None:
        self.refuses = False
        self.jobs: int | None = None  # on each page, and there is always a next one

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = descriptor_pool.Default().FindMethodByName(
            handler_call_details.method[1:].replace("/", ".")
        )
        made = filled(method.output_type)
        if method.name == "RetryDeadLetters":
            made.next_page_token = "" if self.jobs is None else "s1"
            made.looked_at = self.jobs or 0
        elif method.name == "ListJobs" and self.jobs is not None:
            made.jobs.extend([made.jobs[0]] * (self.jobs - 1))
            del made.jobs[self.jobs :]
        elif method.name == "ListSchedules":
            made.next_page_token = "" if self.jobs is None else "s1"
            made.schedules.extend([made.schedules[0]] * ((self.jobs or 1) - 1))
            del made.schedules[1 if self.jobs is None else self.jobs :]

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            if self.refuses or method.client_streaming:  # jq-ctl submits by calls then
                context.set_trailing_metadata((("jq-code", "UNAVAILABLE"),))
                context.abort(grpc.StatusCode.UNAVAILABLE, ESCAPE)
            yield made.SerializeToString()

        return grpc.stream_stream_rpc_method_handler(serve)


@pytest.fixture
def hostile() -> Iterator[tuple[Hostile, str]]:
    handler = Hostile()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    server.stop(0).wait()


def said(target: str, *args: str) -> str:
    """What jq-ctl prints, on both streams."""
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        ctl.run(["--server", target, "--timeout", str(patience.longest(10)), *args])
    return shown.getvalue()


@pytest.mark.parametrize("output", ["table", "json"])
def test_no_answer_of_a_server_commands_a_terminal(hostile: tuple[Hostile, str], output: str):
    handler, target = hostile
    for handler.refuses in (False, True):
        for args in COMMANDS[:: len(COMMANDS) if handler.refuses else 1]:
            text = said(target, *args, "--output", output)
            assert text.strip(), args
            assert not set(text) & COMMANDING, (args, text)


def test_the_last_moment_that_a_caller_may_name_is_shown_in_every_zone(
    monkeypatch: pytest.MonkeyPatch,
):
    latest = 253_402_300_799.0
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert display.local_time(latest)
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("command", "jobs"),
    [("job list --limit 2", 0), ("job list --limit 2", 3), ("dlq list --limit 2", 0),
     ("dlq retry --all", 0), ("schedule list --limit 2", 0),
     ("schedule list --limit 2", 3)],
)  # fmt: skip
def test_a_server_that_always_has_a_next_page_is_left(
    hostile: tuple[Hostile, str], command: str, jobs: int
):
    """Before, jq-ctl asked it for pages for ever."""
    handler, target = hostile
    handler.jobs = jobs
    assert "error: the server" in said(target, *command.split())
