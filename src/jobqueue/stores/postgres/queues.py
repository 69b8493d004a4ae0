"""Creates, changes, pauses, deletes and counts queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import asyncpg

from jobqueue.core.errors import Conflict
from jobqueue.core.limits import MOST_KEYS
from jobqueue.core.queue import KeyState, LimitState, Queue, QueueStats, WaitingType
from jobqueue.core.store import Change
from jobqueue.core.stream import QueueChange
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.heads import Heads, kind_of
from jobqueue.stores.postgres.notices import Speaker
from jobqueue.stores.postgres.queue_cache import QueueCache
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.queue_rows import queue_body, settings_row

CREATED, CHANGED, DELETED = map(int, QueueChange)


class Queues:
    """Implements ``core.store.QueueStore``. A change makes every server read the queues again."""

    def __init__(
        self, database: Database, queue_cache: QueueCache, heads: Heads, speaker: Speaker
    ) -> None:
        self._database = database
        self._queue_cache = queue_cache
        self._heads = heads
        self._speaker = speaker

    async def create(self, queue: Queue) -> bool:
        now = self._database.now()

        async def work(db: Db) -> float | None:
            async with db.transaction():
                at: float | None = await db.fetchval(
                    SQL["create_queue"], queue.name, queue.paused, now, *settings_row(queue)
                )
                if at is not None:
                    made = replace(queue, created_at=at)
                    await db.execute(SQL["put_queue"], CREATED, at, queue_body(made))
                return at

        at = await self._database.writing.write("create_queue", work)
        if at is None:
            return False
        queue.created_at = at
        self._changed()
        return True

    async def update(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        now = self._database.now()

        async def work(db: Db) -> Queue | None:
            async with db.transaction():
                if await db.fetchval(SQL["lock_settings"], name) is None:
                    return None
                (found,) = await reads.stats(db, name)
                changed = replace(found.queue, **values)
                if changed != found.queue:
                    await db.execute(SQL["update_queue"], name, *settings_row(changed))
                    await db.execute(SQL["put_queue"], CHANGED, now, queue_body(changed))
                return changed

        queue = await self._database.writing.write("update_queue", work, again=work)
        self._changed()
        return queue

    async def pause(self, name: str, paused: bool) -> bool:
        now = self._database.now()

        async def work(db: Db) -> bool:
            async with db.transaction():
                changed = await db.fetchval(SQL["pause_queue"], name, paused) is not None
                found = await reads.stats(db, name)
                if changed:
                    await db.execute(SQL["put_queue"], CHANGED, now, queue_body(found[0].queue))
                return bool(found)

        done = await self._database.writing.write("pause_queue", work, again=work)
        self._changed()
        return done

    async def delete(self, name: str) -> int | None:
        now = self._database.now()

        async def work(db: Db) -> int | None:
            async with db.transaction():
                try:
                    queue = await db.fetchval(SQL["lock_queue"], name)  # submits wait from here on
                except asyncpg.LockNotAvailableError:
                    raise Conflict(
                        f"queue {name!r} cannot be deleted now: a database transaction that has not"
                        " ended has submitted jobs to it; try again when it has ended"
                    ) from None
                if queue is None:
                    return None
                left: int = await db.fetchval(SQL["count_unfinished"], queue)
                if not left:
                    (found,) = await reads.stats(db, name)
                    await db.execute(SQL["put_queue"], DELETED, now, queue_body(found.queue))
                    await db.execute("UPDATE queues SET deleted = true WHERE id = $1", queue)
                return left

        left = await self._database.writing.write("delete_queue", work)
        if left == 0:
            self._changed()
        return left

    def _changed(self) -> None:
        self._queue_cache.spoil()
        self._heads.forget()
        self._speaker.say(Change.CONTROL | Change.WORK, None)

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        async def work(db: Db) -> list[int]:
            return [row[0] for row in await db.fetch(SQL["unfinished"], queue, limit)]

        return await self._database.reading.read("unfinished", work)

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        # Not among the other reads: their plans follow statistics, and may read all that waits.
        return await self._database.writing.read(
            "waiting_types", lambda db: reads.waiting_types(db, count_to, queue)
        )

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        return await self._database.reading.read("stats", lambda db: reads.stats(db, queue))

    async def limit_states(self, queue: str | None = None) -> list[LimitState]:
        now = self._database.now()

        async def work(db: Db) -> list[LimitState]:
            names = {row[0]: row[1] for row in await db.fetch(SQL["limited_queues"], queue)}
            if not names:
                return []
            rows = await db.fetch(SQL["limit_state"], list(names), now)
            return [LimitState(names[number], *state) for number, *state in rows]

        return await self._database.reading.read("limit_states", work)

    async def key_states(self, queue: str, count_to: int, key: str | None = None) -> list[KeyState]:
        now = self._database.now()
        number = None if key is None else kind_of(key)

        async def work(db: Db) -> list[KeyState]:
            rows = await db.fetch(SQL["key_states"], queue, count_to, MOST_KEYS, number, now)
            return sorted((KeyState(*row) for row in rows), key=lambda one: one.key)

        # Not among the other reads: see ``waiting_types``.
        return await self._database.writing.read("key_states", work)
