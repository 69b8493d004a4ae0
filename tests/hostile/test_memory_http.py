"""A few bytes over HTTP must not take the server's memory or its time."""

from __future__ import annotations

import asyncio
import contextlib
import gzip

import pytest

from jobqueue.access.rules import MAX_HEADERS
from tests import patience
from tests.hostile.target import Target, headers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOM_MIB = 60


@pytest.mark.parametrize(
    "item",
    ["{}", "0", '""', "[]", '{"payload":1}', '{"labels":{}}'],
)
async def test_a_batch_over_http_is_counted_before_it_is_built(target: Target, item):
    """16 MB of empty jobs became gigabytes."""
    body = ('{"jobs":[' + f"{item}," * (15_000_000 // (len(item) + 1)) + item + "]}").encode()
    with target.watched() as seen:
        for _ in range(2):
            status, told = await asyncio.to_thread(
                target.ask, "POST", "/jobs/batch", headers("client"), body
            )
            assert status == 400
            assert b"jobs" in told
    assert seen.grown_mib < ROOM_MIB + 3 * len(body) / 2**20
    seen.check_healthy()


async def test_labels_over_http_are_counted_before_they_are_built(target: Target):
    labels = ",".join(f'"{number:x}":""' for number in range(1_300_000))
    body = ('{"jobs":[{"payload":1,"labels":{' + labels + "}}]}").encode()
    assert len(body) < 16 * 2**20
    with target.watched() as seen:
        status, told = await asyncio.to_thread(
            target.ask, "POST", "/jobs/batch", headers("client"), body
        )
        assert status == 413
        assert b"the job has" in told
    assert seen.grown_mib < ROOM_MIB + 3 * len(body) / 2**20
    seen.check_healthy()


def test_http_does_not_inflate_bodies(target: Target):
    body = gzip.compress(b'{"payload": "' + b"x" * 1_000_000 + b'"}')
    shown = {**headers("client"), "Content-Encoding": "gzip"}
    status, _ = target.ask("POST", "/jobs", shown, body)
    assert status in (400, 415)


async def test_tiny_headers_take_no_memory(target: Target):
    """Before, each took many times its bytes, and thousands fit into one head."""
    head = b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 9_216  # and no end
    async with contextlib.AsyncExitStack() as stack:
        with target.watched() as seen:
            reading = []
            for _ in range(300):
                reader, writer = await asyncio.open_connection("127.0.0.1", target.http_port)
                stack.callback(writer.close)
                writer.write(head)
                # At once: the server's patience with what is still sent ends after two seconds.
                reading.append(asyncio.create_task(reader.read(1024)))
            async with patience.timeout(60):
                answers = await asyncio.gather(*reading)
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert f"at most {MAX_HEADERS} are allowed".encode() in answer
    assert seen.grown_mib < ROOM_MIB
    seen.check_healthy()


def test_a_request_may_have_the_headers_of_many_proxies(target: Target):
    most = MAX_HEADERS - 2  # beside Host and Accept-Encoding
    for count, expected in ((most, 200), (most + 1, 431)):
        shown = {f"x-{number}": "1" for number in range(count)}
        assert target.ask("GET", "/healthz", shown)[0] == expected
