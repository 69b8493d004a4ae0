"""A field of a job that came later than the others is carried by one list, ``core.job.MORE``."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from jobqueue import documents, wire
from jobqueue.core import job as jobs
from jobqueue.core.job import Job, JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSettings
from jobqueue.engine.paging import job_bytes
from jobqueue.pb.jq.v1 import types_pb2, worker_pb2
from jobqueue.stores import rows
from tests.records import made

LATER = ("labels", "timeout", "key")
SPEC = JobSpec(payload=b"p", labels={"a": "b"}, timeout=4.0, key="k")


def pretend(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """As if these were such fields."""
    for module in (jobs, wire, rows):
        monkeypatch.setattr(module, "MORE", names)
    more_of = operator.attrgetter(*names)
    monkeypatch.setattr(jobs, "_more_of", more_of)
    monkeypatch.setattr(jobs, "_NO_MORE", more_of(JobSpec(payload=b"")))
    monkeypatch.setattr(wire, "_MORE", {})


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, LATER)


def test_it_is_kept_by_stores():
    said = rows.read_more(rows.write_more(SPEC))
    assert said == {"labels": {"a": "b"}, "timeout": 4.0, "key": "k"}


def test_what_was_not_said_takes_no_room():
    assert rows.write_more(JobSpec(payload=b"p")) is None
    assert rows.read_more(None) == {}


def test_nothing_is_kept_where_the_default_is_something_else(monkeypatch: pytest.MonkeyPatch):
    pretend(monkeypatch, ("max_retries", "type"))
    spec = JobSpec(payload=b"p", max_retries=0, type="")
    assert rows.read_more(rows.write_more(spec)) == {"max_retries": 0}


def test_a_list_comes_back_as_specs_have_it():
    assert rows.read_more('{"labels": ["x", "y"]}') == {"labels": ("x", "y")}


def test_what_a_newer_version_wrote_is_left_out():
    assert rows.read_more('{"unheard_of": 1, "key": "k"}') == {"key": "k"}


def test_messages_carry_what_they_have_a_place_for():
    message = types_pb2.JobSpec(**wire.more_fields(SPEC, types_pb2.JobSpec))
    assert wire.read_more(message) == {"labels": {"a": "b"}, "timeout": 4.0, "key": "k"}
    assert wire.more_fields(SPEC, worker_pb2.Assignment) == {
        "labels": {"a": "b"},
        "timeout_seconds": 4.0,
    }


def test_documents_show_it():
    job = made(
        Job, payload=b"p", key="k", id="1", seq=1, state=State.PENDING, version=1, attempt=0,
        retry_count=0, created_at=1.0, updated_at=1.0,
    )  # fmt: skip
    assert documents.job_fields(job)["key"] == "k"


def test_a_page_has_room_for_it():
    asked: dict[str, Any] = {
        "payload": b"p",
        "id": "1",
        "seq": 1,
        "state": State.PENDING,
        "version": 1,
        "attempt": 0,
    }
    asked |= {"retry_count": 0, "created_at": 1.0, "updated_at": 1.0}
    small, large = made(Job, **asked), made(Job, **asked, timeout=123.456)
    assert job_bytes(large) - job_bytes(small) == len("123.456")


def test_it_is_accepted_with_its_job():
    accepted = SPEC.accepted(QueueSettings(timeout=9.0), 0.0)
    assert (accepted.labels, accepted.timeout, accepted.key) == ({"a": "b"}, 4.0, "k")
