"""A whole store, rebuilt from the stream, into an empty Redis: some jobs in each script.

Redis has no transaction over scripts. From the first step to the last there is a key that says so,
and nobody opens a store that has it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from jobqueue.core.errors import Conflict
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.lifecycle import State
from jobqueue.core.rebuild import Key, Rebuilt
from jobqueue.core.restore import (
    Restored,
    RestoredQueue,
    Told,
    holder,
    led,
    not_empty,
    standing,
)
from jobqueue.core.store import Rules
from jobqueue.core.stream import Failed, Finished
from jobqueue.stores.redis.documents import iso
from jobqueue.stores.redis.outbox import as_more
from jobqueue.stores.redis.queues import settings_of
from jobqueue.stores.redis.runner import Runner, opaque
from jobqueue.stores.rows import write_more

_MOST_JOBS = 500  # Redis does nothing else meanwhile
_MOST_EVENTS = 2_000
_MOST_BYTES = 8 * 1024 * 1024
_MOST_KEYS = 1_000


class Restoring:
    """Writes everything, and says so until it has."""

    def __init__(self, runner: Runner, rules: Rules) -> None:
        self._runner = runner
        self._rules = rules

    async def check_none(self) -> None:
        """Refuse a store that a replay is being written to, or was until it was interrupted."""
        since = await self._runner.command(
            "open", "HGET", f"{self._runner.prefix}restoring", "since"
        )
        if since is not None:
            raise self._begun(f" (since {since.decode()})")

    def _begun(self, since: str = "") -> Conflict:
        return Conflict(
            f"a replay into this Redis is under way, or was interrupted{since}: what is there is"
            f" not complete. If none is running, remove every key that begins with"
            f" {self._runner.prefix} and replay again"
        )

    async def restore(self, state: Restored, told: Told) -> None:
        """See ``Store.restore``."""
        token = secrets.token_hex(8)
        await self._begin(token)
        now = await self._now()
        written = 0
        for part in _parts(state.jobs):
            told(written)
            packed = [_packed(rebuilt, now, self._rules) for rebuilt in part]
            await self._step("restore_jobs", (token, packed, []))
            written += len(part)
        for start in range(0, len(state.keys), _MOST_KEYS):
            keys = [_key(key) for key in state.keys[start : start + _MOST_KEYS]]
            await self._step("restore_jobs", (token, [], keys))
        latest = max((rebuilt.job.created_at for rebuilt in state.jobs), default=0.0)
        queues = [_queue(one) for one in state.queues]
        numbers = state.last_seq, state.last_number, latest
        known = state.identity
        store = known.store, known.generation, known.kept
        await self._step("restore_end", (token, queues, *numbers, state.published, store))
        told(written)

    async def _begin(self, token: str) -> None:
        (word,) = await self._runner.write("restore_begin", (token, DEFAULT_QUEUE))
        if word == b"begun":
            return
        if word == b"restoring":
            raise self._begun()
        raise led() if word == b"led" else not_empty(word.decode())

    async def _step(self, name: str, asked: Sequence[Any]) -> None:
        if await self._runner.write(name, asked) is None:
            raise Conflict("this replay was given up: its mark in Redis has been removed")

    async def _now(self) -> float:
        if self._runner.by_clock:
            return self._runner.here()
        seconds, micros = await self._runner.command("time", "TIME")
        return int(seconds) + int(micros) / 1_000_000


def _parts(jobs: Sequence[Rebuilt]) -> Iterator[Sequence[Rebuilt]]:
    begin = size = events = 0
    for n, rebuilt in enumerate(jobs):
        added = len(rebuilt.job.payload) + len(rebuilt.job.result or b"")
        full = n - begin == _MOST_JOBS or events + len(rebuilt.history) > _MOST_EVENTS
        if n > begin and (full or size + added > _MOST_BYTES):
            yield jobs[begin:n]
            begin, size, events = n, 0, 0
        size += added
        events += len(rebuilt.history)
    if jobs:
        yield jobs[begin:]


def _packed(rebuilt: Rebuilt, now: float, rules: Rules) -> tuple[Any, ...]:
    job = rebuilt.job
    stands = standing(job, now, rules)
    lease = None if stands.lease is None else str(stands.lease)
    return (
        job.id,
        job.seq,
        job.queue,
        job.state.name,
        job.priority,
        _fields(rebuilt, lease),
        [
            (
                event.version,
                None if event.from_state is None else event.from_state.name,
                event.to_state.name,
                event.reason.value,
                repr(event.at),
                event.attempt,
                event.worker_id,
                event.detail,
                _more(rebuilt, event.version),
            )
            for event in rebuilt.history
        ],
        stands.ready,
        stands.due,
        holder(job),
        lease,
        job.completed_at if job.state is State.DONE else None,
        job.type,
    )


def _fields(rebuilt: Rebuilt, lease: str | None) -> list[Any]:
    """A job's document. What may be missing is missing."""
    job = rebuilt.job
    values = {
        "job_id": job.id,
        "status": job.state.name,
        "queue": job.queue,
        "type": job.type,
        "payload": opaque(job.payload),
        "priority": job.priority,
        "max_retries": job.max_retries,
        "retry_count": job.retry_count,
        "attempt": job.attempt,
        "version": job.version,
        "reason": job.reason.value,
        "seq": job.seq,
        "created_at": iso(job.created_at),
        "updated_at": iso(job.updated_at),
        "labels": json.dumps(dict(job.labels), ensure_ascii=False) if job.labels else None,
        "ttl": job.ttl,
        "timeout": job.timeout,
        "expires_at": job.expires_at,
        "run_at": job.run_at,
        "more": write_more(job.spec),
        "idempotency_key": job.spec.stored_key,
        "assigned_worker": job.worker_id,
        "lease": lease,
        "cancel_requested": "1" if job.cancel_requested else None,
        "worker_deaths": rebuilt.deaths or None,
        "started_at": job.started_at,
        "completed_at": job.completed_at,
        "next_retry_at": job.next_retry_at,
        "result": None if job.result is None else opaque(job.result),
        "error": job.error or None,
    }
    return [part for item in values.items() if item[1] is not None for part in item]


def _more(rebuilt: Rebuilt, version: int) -> str:
    """What an event keeps: see ``outbox.py``."""
    if version == 1:
        return as_more({"run_at": rebuilt.run_at})
    said = rebuilt.said.get(version)
    if isinstance(said, Failed):
        return as_more(
            {
                "retry_count": said.retry_count,
                "started_at": said.started_at,
                "due": said.next_retry_at,
            }
        )
    if isinstance(said, Finished):
        return as_more(
            {
                "retry_count": said.retry_count,
                "started_at": said.started_at,
                "cancel_requested": said.cancel_requested or None,
            }
        )
    return ""


def _key(key: Key) -> tuple[str, str, str, float]:
    kept = f"{key.job.id} {key.fingerprint.hex()} {key.expires_at!r}"
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
    said = [part for item in fields.items() if item[1] is not None for part in item]
    return one.queue.name, said, one.deleted
