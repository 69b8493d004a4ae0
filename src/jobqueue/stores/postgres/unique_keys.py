"""Reads and writes the holders of unique keys, in the transaction of a submit.

Submits with equal keys are made one after the other, under an advisory lock. A lock stands for many
keys, so that a batch cannot fill PostgreSQL's table of locks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobqueue.core.lifecycle import State
from jobqueue.core.unique import Holder
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.statements import SQL

_LOCKS = 64
_TIDIED = 2  # rows that a submit looks at, for each row that it writes

Key = tuple[int, str]
"""A queue's number and the stored form of a unique key."""


@dataclass(slots=True)
class Holders:
    """The holders of keys, at the time ``now`` of the database."""

    now: float
    by_key: dict[Key, Holder]


async def lock(db: Db, keys: Iterable[Key]) -> None:
    """Wait for other submits with these keys, and let later ones wait for this transaction."""
    await db.execute(SQL["lock_unique"], sorted({_lock_of(key) for key in keys}))


async def holders(db: Db, keys: Iterable[Key], now: float | None) -> Holders:
    """Read the holders of the keys that have one."""
    wanted = list(keys)
    rows = await db.fetch(
        SQL["unique_holders"], [key[0] for key in wanted], [key[1] for key in wanted], now
    )
    found = {
        (queue, key): Holder(str(job_id), seq, created_at, State(state))
        for queue, key, job_id, seq, created_at, state, _ in rows
    }
    return Holders(rows[0][-1] if rows else 0.0, found)


async def hold(db: Db, jobs: Mapping[Key, str], first: int, now: float | None) -> None:
    """Make jobs, given by their ids, the holders of keys. ``first`` is the lowest of their numbers.

    Rows of removed jobs are deleted afterwards; they never wait for another transaction.
    """
    queues, keys = [key[0] for key in jobs], [key[1] for key in jobs]
    await db.execute(SQL["put_unique"], queues, keys, list(jobs.values()), first, now)
    await db.execute(SQL["tidy_unique"], _TIDIED * len(jobs), now)


def _lock_of(key: Key) -> int:
    digest = hashlib.blake2b(f"{key[0]} {key[1]}".encode(), digest_size=2).digest()
    return int.from_bytes(digest) % _LOCKS
