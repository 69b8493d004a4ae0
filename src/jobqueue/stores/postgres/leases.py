"""Draw leases, and compute the leases of the jobs in a held row (a row of job_held).

The lease of such a job is ``base + seq``, and the base is the row's key. So a job's number and its
lease lead to the row. The base is random: the leases of one row reveal nothing about another row.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpg import BitString

from jobqueue.core.ids import new_lease

_OF_HELD_ROWS = 1 << 62
WINDOW = 1024  # numbers; no range and no held row goes beyond


def new_base() -> int:
    """Return a random base for a held row: bit 62 is set, and 61 bits below it are random."""
    # So a lease fits into 63 bits, and differs from the leases of live rows.
    return _OF_HELD_ROWS | new_lease() >> 2


def new_row_lease() -> int:
    """Return a random lease of 62 bits, for a job that has a live row."""
    return new_lease() >> 1 or 1


def base_of(seq: int, lease: int | None) -> int | None:
    """Return the base of the lease of a job in a held row; None if it cannot be such a lease."""
    if lease is None:
        return None
    base = lease - seq
    return base if _OF_HELD_ROWS <= base < 2 * _OF_HELD_ROWS else None


def bits(numbers: Iterable[int]) -> BitString:
    """Return the bits of a window, with the bits of ``numbers`` set, for the table job_held."""
    found = 0
    for number in numbers:
        found |= 1 << (WINDOW - 1 - number % WINDOW)
    return BitString.frombytes(found.to_bytes(WINDOW // 8, "big"), WINDOW)


def numbers_in(open: BitString, numbers: Iterable[int]) -> set[int]:
    """Return those of ``numbers``, all of one window, whose bits are set in ``open``."""
    found = int.from_bytes(open.bytes, "big")
    return {number for number in numbers if found >> (WINDOW - 1 - number % WINDOW) & 1}
