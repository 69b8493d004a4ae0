"""Leases of plain jobs that one worker holds, which share a row of job_held.

The lease of such a job is ``base + seq``, so that a lease names its row. The base is random: a
worker that knows the leases of its own jobs learns nothing about those of another row.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpg import BitString

from jobqueue.core.ids import new_lease

_OF_HELD_ROWS = 1 << 62
WINDOW = 1024  # numbers; no range and no held row goes beyond


def new_base() -> int:
    """Draw a base: bit 62 and 61 unpredictable bits, so that no lease exceeds 63 bits."""
    return _OF_HELD_ROWS | new_lease() >> 2


def new_row_lease() -> int:
    """Draw the lease of a job that has a live row: 62 unpredictable bits."""
    return new_lease() >> 1 or 1


def base_of(seq: int, lease: int | None) -> int | None:
    """Return the base that the lease of a plain job has; None if it cannot be such a lease."""
    return None if lease is None or lease - seq < _OF_HELD_ROWS else lease - seq


def bits(numbers: Iterable[int]) -> BitString:
    """Return a bit for each number of a window, as the column "open" of job_held has them."""
    found = 0
    for number in numbers:
        found |= 1 << (WINDOW - 1 - number % WINDOW)
    return BitString.frombytes(found.to_bytes(WINDOW // 8, "big"), WINDOW)


def numbers_in(open: BitString, numbers: Iterable[int]) -> set[int]:
    """Return the numbers of a window whose bits are set."""
    found = int.from_bytes(open.bytes, "big")
    return {number for number in numbers if found >> (WINDOW - 1 - number % WINDOW) & 1}
