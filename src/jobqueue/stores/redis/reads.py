"""Read jobs and events from Redis for callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from jobqueue.core.clock import milliseconds
from jobqueue.core.job import MAX_ERROR_HEAD, MAX_HISTORY, DeadLetterCause, Event, Job, TimeQuery
from jobqueue.core.lifecycle import State
from jobqueue.core.store import DeadLetters, JobFilter
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.documents import fields, moment
from jobqueue.stores.redis.runner import ScriptRunner

_PAGE = 100  # whole jobs in one answer, because payloads may be large
_LOOKED_AT = 1_000  # jobs in one script
_TRIES = 3


class RedisReads:
    """Implements ``core.store.JobReads``."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner

    async def get(self, job_id: str) -> Job | None:
        found = await self._runner.command("get", "HGETALL", self._document(job_id))
        return documents.job(fields(found)) if found else None

    async def seq_of(self, job_id: str) -> int | None:
        seq = await self._runner.command("seq_of", "HGET", self._document(job_id), "seq")
        return None if seq is None else int(seq)

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        moved: list[int] = await self._runner.read("moved_on", (list(seen), list(seen.values())))
        return moved

    def _document(self, job_id: str) -> str:
        return f"{self._runner.prefix}job:{job_id}"

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        indexes: list[tuple[str, str | None]] | None = None
        if wanted.queue is not None or wanted.states:
            states = wanted.states or tuple(State)
            indexes = [(state.name, wanted.queue) for state in states]
        after = None if wanted.before_seq is None else str(wanted.before_seq)
        jobs: list[Job] = []
        while len(jobs) < wanted.limit:
            count = min(_PAGE, wanted.limit - len(jobs))
            ended, picked, _ = await self._runner.read(
                "list",
                (indexes, True, after, count, _LOOKED_AT, wanted.type, None, "whole",
                 *_asked(wanted)),
            )  # fmt: skip
            jobs += [documents.job(fields(flat)) for flat in picked]
            if ended is None:
                break
            after = ended.decode()
        return jobs

    async def dead_letters(self, wanted: JobFilter) -> DeadLetters:
        after = None if wanted.before_seq is None else str(wanted.before_seq)
        count = min(wanted.limit, _LOOKED_AT)
        ended, picked, looked_at = await self._runner.read(
            "list",
            ([(State.DEAD_LETTERED.name, wanted.queue)], True, after, count, count, wanted.type,
             None, "version", *_asked(wanted)),
        )  # fmt: skip
        found = [(int(seq), int(version)) for seq, version in picked]
        return DeadLetters(found, looked_at, None if ended is None else int(ended))

    async def describe(self, numbers: Sequence[int]) -> list[DeadLetterCause]:
        letters: list[DeadLetterCause] = []
        ordered = sorted(numbers, reverse=True)
        for start in range(0, len(ordered), _LOOKED_AT):
            # A character has at most four bytes.
            asked = (ordered[start : start + _LOOKED_AT], 4 * MAX_ERROR_HEAD)
            found = await self._runner.read("describe", asked)
            letters += [documents.dead_letter(row) for row in found]
        return letters

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        if wanted.limit < 1:
            return []
        page: list[Job] = []
        for _ in range(_TRIES):
            ids = await self._page_by_time(wanted)
            page = [job for job in await self._listed(ids) if wanted.matches(job.state, job.reason)]
            if len(page) == len(ids):
                break  # otherwise some jobs changed while the page was read
        return page

    async def _listed(self, ids: list[str]) -> list[Job]:
        jobs: list[Job] = []
        for start in range(0, len(ids), _PAGE):
            found = await self._runner.read("documents", (ids[start : start + _PAGE],))
            jobs += [documents.job(fields(flat)) for flat in found if flat]
        for job in jobs:
            job.result = None
        return jobs

    async def _page_by_time(self, wanted: TimeQuery) -> list[str]:
        """Return the ids of the jobs on a page, by time of creation, then by id.

        Job numbers are in the order of time, so jobs are read by number. Only the jobs of one
        millisecond must be sorted by id.
        """
        indexes = [(state.name, wanted.queue) for state in wanted.states or tuple(State)]
        end = wanted.offset + wanted.limit
        found: list[tuple[int, str]] = []
        after: str | None = None
        while True:
            ended, picked, _ = await self._runner.read(
                "list",
                (indexes, not wanted.ascending, after, _LOOKED_AT, _LOOKED_AT, wanted.type,
                 wanted.cancelled, "time"),
            )  # fmt: skip
            found += [(milliseconds(moment(at)), job_id.decode()) for job_id, at in picked]
            # All jobs of the page's last millisecond must be read, so that they can be sorted.
            if ended is None or (len(found) > end and found[-1][0] != found[end - 1][0]):
                break
            after = ended.decode()
        ordered: list[str] = []
        for _, same in groupby(found, key=lambda one: one[0]):
            ordered += sorted(job_id for _, job_id in same)
        return ordered[wanted.offset : end]

    async def history(
        self, job_id: str, before: int | None = None, limit: int = MAX_HISTORY
    ) -> list[Event]:
        found = await self._runner.read("history", (job_id, before, limit))
        return [documents.event(fields(flat)) for _, flat in found]


def _asked(wanted: JobFilter) -> tuple[Any, ...]:
    """Return a filter's conditions as the last arguments of ``list`` in ``scripts/reads.lua``."""
    reasons = [one.value for one in wanted.reasons] or None
    return reasons, wanted.error or None, wanted.since, wanted.until
