"""Keep queues in SQLite, with their settings and figures."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobqueue.core.limits import MOST_KEYS
from jobqueue.core.queue import KeyState, LimitState, Queue, QueueStats, WaitingType
from jobqueue.core.stream import QueueChange
from jobqueue.stores.queue_rows import settings_row
from jobqueue.stores.sqlite import reads, streaming
from jobqueue.stores.sqlite.database import SqlitePart, reading, writing
from jobqueue.stores.sqlite.statements import SQL


class SqliteQueues(SqlitePart):
    """Implements ``core.store.QueueStore``."""

    @writing("create_queue")
    def create(self, db: sqlite3.Connection, queue: Queue) -> bool:
        queue.created_at = self._clock.now()
        row = (queue.name, int(queue.paused), queue.created_at, *settings_row(queue))
        made = db.execute(SQL["create_queue"], row).rowcount == 1
        if made:
            streaming.put_queue(db, QueueChange.CREATED, queue, queue.created_at)
        return made

    @writing("update_queue")
    def update(self, db: sqlite3.Connection, name: str, values: Mapping[str, Any]) -> Queue | None:
        found = reads.stats(db, name)
        if not found:
            return None
        changed = replace(found[0].queue, **values)
        if changed != found[0].queue:
            db.execute(SQL["update_queue"], (name, *settings_row(changed)))
            streaming.put_queue(db, QueueChange.CHANGED, changed, self._clock.now())
        return changed

    @writing("pause_queue")
    def pause(self, db: sqlite3.Connection, name: str, paused: bool) -> bool:
        found = reads.stats(db, name)
        if found and found[0].queue.paused != paused:
            db.execute("UPDATE queue SET paused = ? WHERE name = ?", (int(paused), name))
            changed = replace(found[0].queue, paused=paused)
            streaming.put_queue(db, QueueChange.CHANGED, changed, self._clock.now())
        return bool(found)

    @writing("delete_queue")
    def delete(self, db: sqlite3.Connection, name: str) -> int | None:
        found = reads.stats(db, name)
        if not found:
            return None
        if not found[0].unfinished:
            db.execute("UPDATE queue SET deleted = 1 WHERE name = ?", (name,))
            streaming.put_queue(db, QueueChange.DELETED, found[0].queue, self._clock.now())
        return found[0].unfinished

    @reading("unfinished")
    def unfinished(self, db: sqlite3.Connection, queue: str, limit: int) -> list[int]:
        sql = "SELECT seq FROM live WHERE queue = (SELECT id FROM queue WHERE name = ?) LIMIT ?"
        return [row[0] for row in db.execute(sql, (queue, limit))]

    @reading("stats")
    def stats(self, db: sqlite3.Connection, queue: str | None = None) -> list[QueueStats]:
        return reads.stats(db, queue)

    @reading("waiting_types")
    def waiting_types(
        self, db: sqlite3.Connection, count_to: int, queue: str | None = None
    ) -> list[WaitingType]:
        sql = "SELECT id FROM queue WHERE deleted = 0 AND name = coalesce(?, name) ORDER BY name"
        counts: dict[tuple[str, str], int] = {}
        for (number,) in db.execute(sql, (queue,)).fetchall():
            for name in ("waiting_types", "keyed_waiting_types"):
                for of_queue, type, count in db.execute(SQL[name], (number, count_to)):
                    counts[of_queue, type] = counts.get((of_queue, type), 0) + count
        found = (WaitingType(*place, min(count, count_to)) for place, count in counts.items())
        return sorted(found, key=lambda one: (one.queue, one.type))

    @reading("limit_states")
    def limit_states(self, db: sqlite3.Connection, queue: str | None = None) -> list[LimitState]:
        now = self._clock.now()
        found: list[LimitState] = []
        for one in reads.stats(db, queue):
            if one.queue.limits is not None:
                name = one.queue.name
                held, full_at = db.execute(SQL["limit_state_of"], (name,)).fetchone()
                found.append(LimitState(name, held, full_at, now))
        return found

    @reading("key_states")
    def key_states(
        self, db: sqlite3.Connection, queue: str, count_to: int, key: str | None = None
    ) -> list[KeyState]:
        now = self._clock.now()
        rows = db.execute(SQL["key_states"], (queue, count_to, MOST_KEYS, key))
        return [KeyState(name, held, count, full_at, now) for name, held, count, full_at in rows]
