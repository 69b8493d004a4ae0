"""A place in the stream of a store that writes one event after the other.

Beside the events there is an outbox: changes of queues, removals, cancel flags. Each of its
entries comes after the event that was the last one when it was written.
"""

from __future__ import annotations

_BITS = 40


def pack(event: int, entry: int = 0) -> int:
    """After that event, and after that entry of the outbox."""
    return event << _BITS | entry


def unpack(position: int) -> tuple[int, int]:
    """The event and the entry."""
    return position >> _BITS, position & ((1 << _BITS) - 1)
