"""Keep queues in Redis, with their settings and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobqueue.core.lifecycle import State
from jobqueue.core.limits import MOST_KEYS
from jobqueue.core.queue import KeyState, LimitState, Queue, QueueStats, WaitingType
from jobqueue.stores.queue_rows import queue_stats
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.documents import fields, settings_of, split
from jobqueue.stores.redis.runner import ScriptRunner

_STATES = [state.name for state in State]


class RedisQueues:
    """Implements ``core.store.QueueStore``."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def create(self, queue: Queue) -> bool:
        at = await self._runner.write("create_queue", (queue.name, *split(settings_of(queue))))
        if at is None:
            return False
        queue.created_at = float(at[0])
        return True

    async def update(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        settings = settings_of(replace(Queue(name=name), **values))
        changed = {field: settings[field] for field in values}
        said = await self._runner.write("update_queue", (name, *split(changed)))
        return None if said is None else documents.queue(fields(said[0]))

    async def pause(self, name: str, paused: bool) -> bool:
        return await self._runner.write("pause_queue", (name, paused)) is not None

    async def delete(self, name: str) -> int | None:
        said = await self._runner.write("delete_queue", (name,))
        return None if said is None else int(said[0])

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        return [int(seq) for seq in await self._runner.read("unfinished", (queue, limit))]

    async def stats(self, queue: str | None = None) -> list[QueueStats]:
        stats: list[QueueStats] = []
        for flat, depth in await self._runner.read("stats", (_STATES, queue)):
            found = fields(flat)
            succeeded, failed = int(found.get(b"succeeded", 0)), int(found.get(b"failed", 0))
            run_seconds = float(found.get(b"run_seconds", 0.0))
            stats.append(queue_stats(documents.queue(found), depth, succeeded, failed, run_seconds))
        return sorted(stats, key=lambda one: one.queue.name)

    async def waiting_types(self, count_to: int, queue: str | None = None) -> list[WaitingType]:
        rows = await self._runner.read("waiting_types", (count_to, queue))
        found = [WaitingType(name.decode(), type.decode(), int(jobs)) for name, type, jobs in rows]
        return sorted(found, key=lambda one: (one.queue, one.type))

    async def limit_states(self, queue: str | None = None) -> list[LimitState]:
        rows = await self._runner.read("limit_states", (queue,))
        found = [
            LimitState(name.decode(), int(held), float(full_at), float(now))
            for name, held, full_at, now in rows
        ]
        return sorted(found, key=lambda one: one.queue)

    async def key_states(self, queue: str, count_to: int, key: str | None = None) -> list[KeyState]:
        rows = await self._runner.read("key_states", (queue, count_to, MOST_KEYS, key))
        found = [
            KeyState(name.decode(), int(held), int(waiting), float(full_at), float(now))
            for name, held, waiting, full_at, now in rows
        ]
        return sorted(found, key=lambda one: one.key)
