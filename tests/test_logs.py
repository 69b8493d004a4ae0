"""Log lines: JSON with the fields of jq:FR-041, other libraries included, secrets masked."""

from __future__ import annotations

import json
import logging
import re
import warnings

import pytest

from jobqueue import logs


@pytest.fixture(autouse=True)
def _as_before():
    root = logging.getLogger()
    names = ("uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "grpc._cython", "asyncio")
    before = (root.level, root.handlers[:])
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    logging.captureWarnings(False)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def lines(capsys):
    def read() -> list[dict]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return read


@pytest.mark.req("jq:FR-041")
def test_a_line_has_the_required_fields_and_its_context(lines):
    logs.configure("jq-test")
    logging.getLogger("jobqueue.engine").info(
        "moved %d", 3, extra={"job_id": "j1", "worker_id": "w1", "queue": "mail", "n": 3}
    )
    (line,) = lines()
    assert line["level"] == "INFO"
    assert line["service"] == "jq-test"
    assert line["message"] == "moved 3"
    assert (line["job_id"], line["worker_id"], line["queue"], line["n"]) == ("j1", "w1", "mail", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"])
    assert logs.timestamp(line["ts_ms"] / 1000)[:19] == line["timestamp"][:19]


@pytest.mark.req("tq:LOG", "tq:LOCK-34")
def test_fields_that_are_always_there_are_empty_when_nothing_is_known(lines):
    logs.configure("gateway", always=("method", "event"))
    logging.getLogger("grpc").warning("from elsewhere")
    logging.getLogger("jobqueue.services").info("ready", extra={"event": "ready", "method": "x"})
    elsewhere, ours = lines()
    assert (elsewhere["method"], elsewhere["event"]) == ("", "")
    assert (ours["method"], ours["event"]) == ("x", "ready")


def test_timestamps_are_utc_with_milliseconds():
    assert logs.timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert logs.timestamp(1_700_000_000.9996) == "2023-11-14T22:13:20.999Z"


@pytest.mark.req("jq:FR-041")
def test_other_libraries_write_the_same_lines(lines):
    logs.configure("jq-test", "debug")
    logging.getLogger("uvicorn.error").warning("from uvicorn")
    logging.getLogger("grpc").warning("from grpc")
    logging.getLogger("asyncio").error("from asyncio")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old ways", stacklevel=1)
    found = lines()
    assert [line["message"] for line in found[:3]] == ["from uvicorn", "from grpc", "from asyncio"]
    assert "old ways" in found[3]["message"]


def test_an_exception_is_a_field_on_the_same_line(lines):
    logs.configure("jq-test")
    try:
        raise ValueError("x://u:secret@h is wrong")
    except ValueError:
        logging.getLogger("jobqueue.x").exception("it failed")
    (line,) = lines()
    assert line["exception"]["type"] == "ValueError"
    assert "Traceback" in line["exception"]["trace"]
    assert "secret" not in json.dumps(line)


def test_secrets_are_masked_in_messages_and_fields(lines):
    logs.configure("jq-test")
    logging.getLogger("jobqueue.x").warning(
        "connecting to %s",
        "postgresql://me:hush@h/db",
        extra={"url": "redis://:hush@h", "db_password": "hush", "nested": {"a": ["x://u:hush@h"]}},
    )
    (line,) = lines()
    assert "hush" not in json.dumps(line)
    assert line["message"] == "connecting to postgresql://me:***@h/db"
    assert line["db_password"] == "***"


def test_a_field_cannot_take_the_place_of_a_required_one(lines):
    logs.configure("jq-test")
    logging.getLogger("jobqueue.x").info("real", extra={"service": "fake", "level": "fake"})
    (line,) = lines()
    assert (line["service"], line["level"], line["service_"]) == ("jq-test", "INFO", "fake")


def test_anything_can_be_a_field(lines):
    logs.configure("jq-test")
    logging.getLogger("jobqueue.x").info("x", extra={"raw": b"\xff", "thing": object(), "t": (1,)})
    (line,) = lines()
    assert line["thing"].startswith("<object")
    assert line["t"] == [1]


def test_a_message_of_several_lines_stays_on_one(lines):
    logs.configure("jq-test")
    logging.getLogger("jobqueue.x").info("one\ntwo\u2028three")
    assert lines()[0]["message"] == "one\ntwo\u2028three"


def test_the_level_is_honoured_and_configuring_again_replaces(lines):
    logs.configure("first", "debug")
    logs.configure("second", "warning")
    logging.getLogger("jobqueue.x").info("not shown")
    logging.getLogger("jobqueue.x").warning("shown")
    (line,) = lines()
    assert (line["service"], line["message"]) == ("second", "shown")


def test_the_text_format_is_for_people(capsys):
    logs.configure("jq-test", "info", "text")
    logging.getLogger("jobqueue.x").warning("to x://u:hush@h", extra={"job_id": "j1"})
    text = capsys.readouterr().out
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING to x://u:\*\*\*@h  \[job_id=j1\]\n", text)


def test_text_from_elsewhere_makes_no_line_of_its_own(capsys):
    logs.configure("jq-test", "info", "text")
    logging.getLogger("jobqueue.x").info(
        "path %s", "/a\n12:00:00 ERROR forged", extra={"q": "\x1b[31m\r\n"}
    )
    (line,) = capsys.readouterr().out.splitlines()
    assert "\\x0a12:00:00 ERROR forged" in line
    assert "\x1b" not in line


@pytest.mark.parametrize("milliseconds", range(0, 1000, 37))
def test_a_time_in_milliseconds_is_shown_as_it_was_given(milliseconds: int):
    assert logs.timestamp(1_800_000_000 + milliseconds / 1000).endswith(f".{milliseconds:03d}Z")
