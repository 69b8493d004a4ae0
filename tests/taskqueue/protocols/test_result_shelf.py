"""The owner of the outputs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.taskqueue.components.model import (
    MAX_OUTPUT_BYTES,
    Envelope,
    Status,
    Stored,
)
from jobqueue.taskqueue.components.state import ResultShelf
from tests.taskqueue.protocols.rig import Lines

DONE = Envelope("j", Status.DONE, 5, "made", b"out")
EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.fixture
def shelf() -> ResultShelf:
    return ResultShelf(max_output_bytes=8, max_results=3)


async def store(shelf: ResultShelf, envelope: Envelope) -> Stored:
    return await shelf.store(envelope, request_id="")


async def kept(shelf: ResultShelf, job_id: str = "j") -> Envelope:
    envelope = await shelf.get(job_id)
    assert envelope is not None
    return envelope


@pytest.mark.req("tq:TERMINAL")
@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING])
async def test_only_an_end_is_kept(shelf: ResultShelf, status):
    with pytest.raises(InvalidArgument, match=r"terminal_status.*DONE, FAILED or CANCELED"):
        await store(shelf, replace(DONE, status=status))
    assert await shelf.get("j") is None


@pytest.mark.req("tq:RESULT", "tq:LOCK-18")
@pytest.mark.parametrize("status", [Status.DONE, Status.FAILED, Status.CANCELED])
@pytest.mark.parametrize("output", [b"", b"out"])
async def test_the_checksum_is_always_there_in_lowercase_sha256(shelf, status, output):
    given = replace(DONE, status=status, output=output)
    assert await store(shelf, given) == Stored(True, False, status)
    assert await kept(shelf) == replace(given, checksum=hashlib.sha256(output).hexdigest())


@pytest.mark.req("tq:RESULT", "tq:LOCK-18")
@pytest.mark.parametrize("wrong", [EMPTY, hashlib.sha256(b"out").hexdigest().upper(), "x"])
async def test_a_checksum_that_is_not_the_outputs_is_refused(shelf: ResultShelf, wrong):
    with pytest.raises(InvalidArgument, match="checksum"):
        await store(shelf, replace(DONE, checksum=wrong))
    assert await shelf.get("j") is None
    assert (await store(shelf, replace(DONE, checksum=hashlib.sha256(b"out").hexdigest()))).stored


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-29")
async def test_an_equal_envelope_is_confirmed_and_tells_that_it_was_there(shelf, lines: Lines):
    assert await store(shelf, DONE) == Stored(True, False, Status.DONE)
    assert await store(shelf, DONE) == Stored(True, True, Status.DONE)
    assert not lines.of("result_conflict")


@pytest.mark.req("tq:TERMINAL", "tq:LOCK-4", "tq:LOCK-29")
@pytest.mark.parametrize(
    "other",
    [
        replace(DONE, status=Status.FAILED),
        replace(DONE, status=Status.CANCELED),
        replace(DONE, output=b"else"),
        replace(DONE, output_summary="else"),
        replace(DONE, runtime_ms=6),
    ],
    ids=["failed", "canceled", "output", "summary", "runtime"],
)
async def test_the_first_envelope_stays_and_the_conflict_is_shown_and_logged(
    shelf, lines: Lines, other
):
    await store(shelf, DONE)
    first = await kept(shelf)
    assert await store(shelf, other) == Stored(False, True, Status.DONE)
    assert await kept(shelf) == first
    assert lines.of("result_conflict", "j")


@pytest.mark.req("tq:RESULT", "tq:LOCK-18")
async def test_output_over_the_cap_becomes_a_failure_without_the_bytes(shelf: ResultShelf):
    large = replace(DONE, output=b"123456789", checksum="not looked at")
    assert await store(shelf, large) == Stored(True, False, Status.FAILED)
    envelope = await kept(shelf)
    assert envelope.status is Status.FAILED
    assert envelope.output == b""
    assert envelope.checksum == EMPTY
    assert envelope.output_summary.startswith("OUTPUT_TOO_LARGE: ")
    assert "9 bytes" in envelope.output_summary
    assert envelope.runtime_ms == 5
    assert await store(shelf, large) == Stored(True, True, Status.FAILED)


@pytest.mark.req("tq:RESULT", "tq:LOCK-18")
async def test_the_cap_is_256_kib_and_what_is_just_as_large_is_kept():
    shelf = ResultShelf()
    assert MAX_OUTPUT_BYTES == 256 * 1024
    just = await store(shelf, replace(DONE, output=b"x" * MAX_OUTPUT_BYTES))
    over = await store(shelf, Envelope("k", Status.DONE, output=b"x" * (MAX_OUTPUT_BYTES + 1)))
    assert just.current is Status.DONE
    assert over.current is Status.FAILED


@pytest.mark.req("tq:CODES")
async def test_a_repeated_request_is_told_the_first_answer(shelf: ResultShelf):
    first = await shelf.store(DONE, request_id="r")
    assert await shelf.store(DONE, request_id="r") == first == Stored(True, False, Status.DONE)


@pytest.mark.req("tq:CODES")
async def test_an_id_that_was_used_for_another_job_is_no_repetition(shelf: ResultShelf):
    for job_id in "ab":
        stored = await shelf.store(Envelope(job_id, Status.DONE), request_id="r")
        assert stored == Stored(True, False, Status.DONE)
        assert await shelf.get(job_id) is not None


async def test_the_latest_results_are_kept(shelf: ResultShelf):
    for job_id in "abcd":
        await store(shelf, Envelope(job_id, Status.DONE))
    assert len(shelf) == 3
    assert await shelf.get("a") is None
    assert await shelf.get("d") is not None


async def test_outputs_are_bounded_in_all_and_the_oldest_make_room():
    shelf = ResultShelf(max_bytes=10)
    for job_id in "abc":
        await store(shelf, Envelope(job_id, Status.DONE, output=b"1234"))
    assert [await shelf.get(job_id) is not None for job_id in "abc"] == [False, True, True]
    await store(shelf, Envelope("b", Status.DONE, output=b"1234"))  # there already: no more bytes
    await store(shelf, Envelope("d", Status.DONE, output=b"12"))
    assert [await shelf.get(job_id) is not None for job_id in "bcd"] == [True, True, True]
    await store(shelf, Envelope("e", Status.DONE, output=b"1234567890"))
    assert len(shelf) == 1
    assert await shelf.get("e") is not None
