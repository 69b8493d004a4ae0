"""Apply the limits of a queue to the claims of one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence

from jobqueue.core.limits import MOST_KEYS, Limits
from jobqueue.core.turns import KeyAllowances, Turns
from jobqueue.stores.sqlite.statements import SQL, Row

Types = frozenset[str] | None
Cursors = dict[int, str]
"""By queue, the last key that a claim looked at. It is used where very many keys wait."""
_FIRST_CHUNK = 4
_MOST_LINES = 2 * MOST_KEYS  # a key may have several types and priorities


class LimitedClaim:
    """Counts what the limits of a queue still allow, and chooses its jobs if keys matter.

    ``depth`` has the held jobs that the transaction has not written to the queue's figures yet.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        now: float,
        queue: int,
        limits: Limits,
        weights: Mapping[int, int] | None,
        depth: int,
        cursors: Cursors,
        *,
        keyed: bool,
    ) -> None:
        self._connection = connection
        self._now = now
        self._queue = queue
        self._limits = limits
        self._weights = weights
        self._cursors = cursors
        counted, full_at = connection.execute(SQL["limit_state"], (queue,)).fetchone()
        held = counted + depth
        self.allowance = limits.allowance(held, full_at, now)
        self._buckets: dict[str | None, float] = {}  # of keys whose lines were read
        self.keys: KeyAllowances[str | None] | None = None
        if limits.keyed and keyed:
            by_key: dict[str | None, int] = dict(connection.execute(SQL["key_held"], (queue,)))
            by_key[None] = held - sum(by_key.values())
            self.keys = KeyAllowances(limits, by_key, self._buckets, now)
        self._key_of: dict[int, str | None] = {}  # of the jobs that were chosen last

    def next_jobs(
        self, types: Types, limit: int, plain: Callable[[Types, int], list[Row]]
    ) -> list[Row]:
        """Return the rows of the next jobs, at most ``limit``, in the order of their turns.

        ``plain`` returns the next jobs without regard to keys.
        """
        most = int(min(limit, self.allowance.left))
        if self.keys is None:
            return plain(types, most)
        self._key_of.clear()
        shares = self._limits.shares
        turns = Turns(self._lines(types), self.keys, shares, self._weights)
        rows: list[Row] = []
        while len(rows) < most and (line := turns.next()) is not None:
            row = line.pop()
            turns.took(line, started=row is not None)
            if row is not None:
                rows.append(row)
                self._key_of[row[1]] = line.key
        return rows

    def took(self, seqs: Iterable[int]) -> None:
        """Record which jobs of the last ``next_jobs`` were assigned."""
        taken = set(seqs)
        self.allowance.started += len(taken)
        if self.keys is not None:
            for seq, key in self._key_of.items():
                if seq not in taken:
                    self.keys.of(key).started -= 1
        self._key_of.clear()

    def finish(self) -> float | None:
        """Write the new states of the buckets.

        Return the seconds until the limits may allow another start; None: they allow one now.
        """
        spent = self.keys.spent if self.keys is not None else {}
        rows = [(self._queue, key, full_at) for key, full_at in spent.items() if key is not None]
        if (full_at := self.allowance.full_at) is not None:
            rows.append((self._queue, "", full_at))
        if rows:
            self._connection.execute(SQL["expire_buckets"], (self._now,))
            self._connection.executemany(SQL["put_bucket"], rows)
        if not self.allowance.left:
            return self.allowance.opens_in
        return None if self.keys is None else self.keys.opens_in

    def _lines(self, types: Types) -> list[_Line]:
        execute, queue = self._connection.execute, self._queue
        found: list[Row] = execute(SQL["lines"], (queue, _MOST_LINES)).fetchall()
        after = self._cursors.get(queue, "")
        of_keys = execute(SQL["key_lines"], (queue, _MOST_LINES, after)).fetchall()
        if len(of_keys) == _MOST_LINES:
            self._cursors[queue] = of_keys[-1][0]  # the next claim goes on from here
        elif after:
            del self._cursors[queue]
            of_keys = execute(SQL["key_lines"], (queue, _MOST_LINES, "")).fetchall()
        self._buckets.update((key, full_at) for key, _, _, _, full_at in of_keys)
        return [
            _Line(self._connection, self._now, queue, *line)
            for *line, _ in (*found, *of_keys)
            if types is None or line[1] in types
        ]


class _Line:
    """Implements ``core.turns.Line``. It reads its jobs, in growing chunks, when they are taken.

    Until then ``seq`` may be the number of a job that has expired.
    """

    __slots__ = ("_chunk", "_connection", "_now", "_queue", "_rows", "key", "rank", "seq", "type")

    def __init__(
        self,
        connection: sqlite3.Connection,
        now: float,
        queue: int,
        key: str | None,
        type: str,
        rank: int,
        seq: int,
    ) -> None:
        self._connection = connection
        self._now = now
        self._queue = queue
        self._rows: list[Row] = []  # the next job is the last row
        self._chunk = _FIRST_CHUNK
        self.key = key
        self.type = type
        self.rank = rank
        self.seq: int | None = seq

    def pop(self) -> Row | None:
        """Return the first job and move on. Return None if the first job was another one."""
        expected = self.seq
        if not self._rows:
            self._read()
        if not self._rows or self._rows[-1][1] != expected:
            return None
        row = self._rows.pop()
        if self._rows:
            self.seq = self._rows[-1][1]
        else:
            self.seq = row[1] + 1
            self._read()
        return row

    def _read(self) -> None:
        name = "jobs_of_line" if self.key is None else "jobs_of_key_line"
        values: Sequence[object] = (
            self._queue, self.type, self.rank, self.seq, self._now, self._chunk,
        )  # fmt: skip
        if self.key is not None:
            values = (*values, self.key)
        rows = self._connection.execute(SQL[name], values).fetchall()
        rows.reverse()
        self._rows = rows
        self._chunk *= 2
        self.seq = rows[-1][1] if rows else None
