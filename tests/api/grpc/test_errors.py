"""Every error keeps its class, its text and its details across the wire."""

from __future__ import annotations

import grpc
import pytest

from jobqueue.api.grpc.errors import (
    STATUS,
    error_from_pb,
    error_to_pb,
    from_status,
    to_status,
)
from jobqueue.core.errors import (
    AlreadyExists,
    Code,
    Conflict,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    JobFailed,
    KeyConflict,
    NotFound,
    NotUnique,
    OutcomeUnknown,
    PermissionDenied,
    QueueFull,
    RateLimited,
    Unauthenticated,
    Unavailable,
    UnknownCall,
    Unreachable,
)
from jobqueue.core.job import JobSpec

ERRORS = [
    InvalidArgument("priority", "must be 0 to 9, not: 12"),
    InvalidArgument("pri\u00f6 \n", "\u2026"),
    NotFound("there is no job"),
    AlreadyExists("the name is taken"),
    Conflict("not empty"),
    KeyConflict("used before", "0b4ee0a2-0000-4000-8000-000000000000"),
    NotUnique("taken", "0b4ee0a2-0000-4000-8000-000000000000"),
    QueueFull("full", 2.5),
    RateLimited("too fast", 0.25),
    Unavailable("no store"),
    OutcomeUnknown("the answer was lost"),
    DeadlineExceeded("too late"),
    Unauthenticated("who?"),
    PermissionDenied("not you"),
    JobFailed("0b4ee0a2-0000-4000-8000-000000000000", "POISON", "boom"),
    Internal("a defect"),
]


def test_the_table_is_complete():
    assert set(STATUS) == set(Code)
    assert {error.code for error in ERRORS} == set(Code)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_rebuilt_from_status_and_metadata(error):
    status, text, metadata = to_status(error)
    assert status is STATUS[error.code]
    assert all(value.isascii() and value.isprintable() for _, value in metadata)
    back = from_status(status, text, metadata, sent=True)
    assert type(back) is type(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_rebuilt_from_a_message(error):
    back = error_from_pb(error_to_pb(error))
    assert type(back) is type(error)
    assert vars(back) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
async def test_rebuilt_over_the_network(engine, remote, monkeypatch, error):
    async def fail(job_id):
        raise error

    monkeypatch.setattr(engine, "get", fail)
    with pytest.raises(type(error)) as caught:
        await remote.get("0b4ee0a2-0000-4000-8000-000000000000")
    assert vars(caught.value) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
async def test_rebuilt_from_a_submit(engine, remote, error):
    engine.submit_error = error
    with pytest.raises(type(error)) as caught:
        await remote.submit([JobSpec(payload=b"x")])
    assert vars(caught.value) == vars(error)


@pytest.mark.parametrize(
    ("status", "text", "sent", "expected"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses", True, Unreachable),
        ("UNAVAILABLE", "Socket closed", False, Unreachable),
        ("UNAVAILABLE", "Socket closed", True, OutcomeUnknown),
        ("CANCELLED", "", True, OutcomeUnknown),
        ("DEADLINE_EXCEEDED", "", False, DeadlineExceeded),
        ("DEADLINE_EXCEEDED", "", True, OutcomeUnknown),
        ("RESOURCE_EXHAUSTED", "larger than max", True, InvalidArgument),
        ("UNAUTHENTICATED", "", True, Unauthenticated),
        ("PERMISSION_DENIED", "", True, PermissionDenied),
        ("UNIMPLEMENTED", "", True, UnknownCall),
        ("DATA_LOSS", "", True, Internal),
        ("INTERNAL", "Internal error from Core", True, OutcomeUnknown),
        ("INTERNAL", "Internal error from Core", False, Unreachable),
    ],
)
def test_errors_of_the_transport(status, text, sent, expected):
    error = from_status(grpc.StatusCode[status], text, None, sent=sent)
    assert type(error) is expected


async def test_a_defect_leaks_nothing_and_is_logged(engine, remote, monkeypatch, caplog):
    async def fail(job_id):
        raise RuntimeError("secret internals")

    monkeypatch.setattr(engine, "get", fail)
    with pytest.raises(Internal) as caught:
        await remote.get("0b4ee0a2-0000-4000-8000-000000000000")
    assert "secret" not in caught.value.message
    assert "secret internals" in caplog.text
