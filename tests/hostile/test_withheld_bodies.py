"""Bodies that are almost sent must not take the memory that others' bodies need."""

from __future__ import annotations

import asyncio

import pytest

from tests import patience
from tests.hostile.target import KEYS, Target

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BODIES = 16
SIZE = 16 * 2**20
POOL_MIB = 256
HEAD = (
    "POST /jobs/batch HTTP/1.1\r\nHost: localhost\r\n"
    f"Authorization: Bearer {KEYS['client']}\r\nContent-Length: {SIZE}\r\n\r\n"
).encode()


async def withhold(target: Target) -> int:
    """Send a body but for its last byte; returns the status that it is answered with in the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.http_port)
    try:
        writer.write(HEAD + b"x" * (SIZE - 1))
        first = await reader.readline()
        return int(first.split(b" ")[1]) if first else 0
    except ConnectionError:
        return 0  # it was answered, and closed before all was sent
    finally:
        writer.transport.abort()


async def test_withheld_bodies_leave_room_for_others(target: Target) -> None:
    """They took all of the memory for bodies, and every POST of others was a 503 for 28 s."""
    with target.watched() as seen:
        async with patience.timeout(120):
            codes = await asyncio.gather(*(withhold(target) for _ in range(BODIES)))
    seen.check_healthy()
    assert set(codes) <= {0, 408, 503}
    assert 408 in codes  # the others were over the caller's part
    assert codes.count(408) < BODIES
    assert seen.grown_mib < POOL_MIB  # half of it, in pieces
