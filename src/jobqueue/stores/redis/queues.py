"""Queues: made, changed, paused, deleted, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobqueue.core.lifecycle import State
from jobqueue.core.queue import SETTINGS, Queue, QueueStats, WaitingType
from jobqueue.stores.queue_rows import write_value
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.runner import Runner

_STATES = [state.name for state in State]


def settings_of(queue: Queue) -> dict[str, Any]:
    """A queue's document, without its times and figures; what may be missing is None."""
    said = {
        setting.name: write_value(setting.kind, getattr(queue, setting.name))
        for setting in SETTINGS.values()
    }
    return {"name": queue.name, **said, "paused": "1" if queue.paused else "0"}


def _split(values: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """Fields to set, each with its value behind it, and fields to remove."""
    said = [part for item in values.items() if item[1] is not None for part in item]
    return said, [field for field, value in values.items() if value is None]


class Queues:
    """The calls about queues."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def create(self, queue: Queue) -> bool:
        """See ``Store.create_queue``."""
        at = await self._runner.write("create_queue", (queue.name, *_split(settings_of(queue))))
        if at is None:
            return False
        queue.created_at = float(at[0])
        return True

    async def update(self, name: str, values: Mapping[str, Any]) -> Queue | None:
        """See ``Store.update_queue``."""
        fields = settings_of(replace(Queue(name=name), **values))
        changed = {field: fields[field] for field in values}
        said = await self._runner.write("update_queue", (name, *_split(changed)))
        return None if said is None else documents.queue(documents.fields(said[0]))

    async def pause(self, name: str, paused: bool) -> bool:
        """See ``Store.pause_queue``."""
        return await self._runner.write("pause_queue", (name, paused)) is not None

    async def delete(self, name: str) -> int | None:
        """See ``Store.delete_queue``."""
        said = await self._runner.write("delete_queue", (name,))
        return None if said is None else int(said[0])

    async def unfinished(self, queue: str, limit: int) -> list[int]:
        """See ``Store.unfinished``."""
        return [int(seq) for seq in await self._runner.read("unfinished", (queue, limit))]

    async def stats(self, queue: str | None) -> list[QueueStats]:
        """See ``Store.stats``."""
        rows = await self._runner.read("stats", (_STATES, queue))
        found = [documents.stats(flat, depth) for flat, depth in rows]
        return sorted(found, key=lambda one: one.queue.name)

    async def waiting_types(self, count_to: int, queue: str | None) -> list[WaitingType]:
        """See ``Store.waiting_types``."""
        rows = await self._runner.read("waiting_types", (count_to, queue))
        found = [WaitingType(name.decode(), type.decode(), int(jobs)) for name, type, jobs in rows]
        return sorted(found, key=lambda one: (one.queue, one.type))
