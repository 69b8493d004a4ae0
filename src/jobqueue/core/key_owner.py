"""Whose an idempotency key is, and the one text in which stores keep a key with its owner.

A key without an owner is everybody's: it was written where callers are not known, or by an earlier
version, or it is the key of a schedule's tick. It is kept as it is. The key of a caller is kept
with the caller's name before it, between two marks that no name has.
"""

from __future__ import annotations

TICKS = "cron:"
"""How the keys of schedules' ticks begin: all workers share them."""
_MARK = "\x1f"


def stored_key(owner: str, key: str) -> str:
    """The key as stores keep it; ``owner`` is a caller's name, or empty."""
    if not owner and not key.startswith(_MARK):
        return key
    return f"{_MARK}{owner}{_MARK}{key}"


def read_key(stored: str | None) -> tuple[str | None, str]:
    """(key, owner) of what a store has kept."""
    if stored is None or not stored.startswith(_MARK):
        return stored, ""
    owner, mark, key = stored[1:].partition(_MARK)
    # An earlier version kept a key that begins with a mark as it was.
    return (key, owner) if mark else (stored, "")
