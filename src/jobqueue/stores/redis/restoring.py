"""Write the content of a store, rebuilt from the event stream, into an empty Redis.

Redis has no transactions over several scripts. From the first step to the last step the key
``restoring`` marks the store as incomplete, and an incomplete store cannot be opened.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from jobqueue.core.decide import Live
from jobqueue.core.errors import Conflict
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.lifecycle import State
from jobqueue.core.rebuild import (
    Key,
    Rebuilt,
    Restored,
    RestoredQueue,
    Told,
    led,
    not_empty,
    parts,
    standing,
)
from jobqueue.core.schedule import Schedule
from jobqueue.core.store import Rules
from jobqueue.stores.redis.documents import (
    in_parts,
    iso,
    live_fields,
    packed_event,
    settings_of,
    spec_fields,
    split,
)
from jobqueue.stores.redis.runner import ScriptRunner
from jobqueue.stores.redis.schedules import packed_schedule

_MOST_JOBS = 500  # of one script, because Redis does nothing else meanwhile
_MOST_EVENTS = 2_000
_MOST_BYTES = 8 * 1024 * 1024
_MOST_KEYS = 1_000


class RedisRestore:
    """Writes the rebuilt content of a store in several steps."""

    def __init__(self, runner: ScriptRunner, rules: Rules) -> None:
        self._runner = runner
        self._rules = rules

    async def check_none(self) -> None:
        """Raise Conflict if a replay is writing this store, or left it incomplete."""
        mark = f"{self._runner.prefix}restoring"
        since = await self._runner.command("open", "HGET", mark, "since")
        if since is not None:
            raise self._incomplete(f" (since {since.decode()})")

    def _incomplete(self, since: str = "") -> Conflict:
        return Conflict(
            f"a replay into this Redis is in progress or was interrupted{since}: the store is not"
            f" complete. If no replay is running, remove every key that begins with"
            f" {self._runner.prefix} and replay again"
        )

    async def restore(self, state: Restored, told: Told) -> None:
        """Write the rebuilt content. Raise Conflict if the store is not empty.

        ``told`` is called with the number of jobs written so far.
        """
        token = secrets.token_hex(8)
        (word,) = await self._runner.write("restore_begin", (token, DEFAULT_QUEUE))
        if word == b"restoring":
            raise self._incomplete()
        if word != b"begun":
            raise led() if word == b"led" else not_empty(word.decode())
        now = await self._now()
        written = 0
        for part in parts(state.jobs, _MOST_JOBS, _MOST_EVENTS, _MOST_BYTES):
            told(written)
            packed = [_packed(rebuilt, now, self._rules) for rebuilt in part]
            await self._step("restore_jobs", token, packed, [])
            written += len(part)
        for start in range(0, len(state.keys), _MOST_KEYS):
            keys = [_key(key) for key in state.keys[start : start + _MOST_KEYS]]
            await self._step("restore_jobs", token, [], keys)
        for schedules in in_parts(state.schedules, _MOST_JOBS, _size_of):
            await self._step(
                "restore_schedules", token, [packed_schedule(one) for one in schedules]
            )
        latest = max((rebuilt.created_at for rebuilt in state.jobs), default=0.0)
        queues = [_queue(one) for one in state.queues]
        numbers = state.last_seq, state.last_number, latest
        known = state.identity
        store = known.store, known.generation, known.kept
        await self._step("restore_end", token, queues, *numbers, state.published, store)
        told(written)

    async def _step(self, name: str, *asked: Any) -> None:
        if await self._runner.write(name, asked) is None:
            raise Conflict(
                f"this replay stopped, because another process removed its key"
                f" {self._runner.prefix}restoring; replay again into an empty Redis"
            )

    async def _now(self) -> float:
        if self._runner.by_clock:
            return self._runner.here()
        seconds, micros = await self._runner.command("time", "TIME")
        return int(seconds) + int(micros) / 1_000_000


def _packed(rebuilt: Rebuilt, now: float, rules: Rules) -> Sequence[Any]:
    """Return a job in the form that ``restore_jobs`` in ``scripts/stream.lua`` reads."""
    live, ready = standing(rebuilt, now, rules, Live)
    spec = rebuilt.spec
    document = {
        "job_id": rebuilt.id,
        "seq": live.seq,
        "created_at": iso(rebuilt.created_at),
        "updated_at": iso(rebuilt.updated_at),
    }
    return (
        rebuilt.id, live.seq, spec.queue, spec.type, spec.priority, live.state.name,
        split(document | spec_fields(spec) | live_fields(live))[0],
        [packed_event(entry) for entry in rebuilt.entries], ready, live.due, live.worker_id,
        None if live.lease is None else str(live.lease),
        live.completed_at if live.state is State.DONE else None,
        None if spec.unique is None else spec.unique.stored,
        f"{rebuilt.id} {rebuilt.created_at!r}",
        spec.concurrency_key,
    )  # fmt: skip


def _key(key: Key) -> tuple[str, str, str, float]:
    kept = f"{key.job_id} {key.fingerprint.hex()} {key.expires_at!r}"
    return key.queue, key.key, kept, key.expires_at


def _queue(one: RestoredQueue) -> tuple[str, list[Any], bool]:
    figures = one.figures
    fields = settings_of(one.queue) | {
        "created_at": repr(one.queue.created_at),
        "deleted": "1" if one.deleted else None,
        "succeeded": figures.succeeded or None,
        "failed": figures.failed or None,
        "run_seconds": repr(figures.run_seconds) if figures.run_seconds else None,
    }
    return one.queue.name, split(fields)[0], one.deleted


def _size_of(schedule: Schedule) -> int:
    return len(schedule.spec.job.payload)
