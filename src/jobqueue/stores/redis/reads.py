"""Reading jobs and events."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from jobqueue.core.clock import milliseconds
from jobqueue.core.job import MAX_HISTORY, Event, Job, TimeQuery
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import DeadLetters, JobFilter
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.documents import fields, moment, place_of
from jobqueue.stores.redis.runner import Runner

_PAGE = 100  # whole jobs in one answer: payloads are large
_LOOKED_AT = 1_000  # jobs in one script
_TRIES = 3


class Reads:
    """The calls that change nothing."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def get(self, job_id: str) -> Job | None:
        """See ``Store.get``."""
        found = await self._runner.command("get", "HGETALL", self._document(job_id))
        return documents.job(fields(found)) if found else None

    async def seq_of(self, job_id: str) -> int | None:
        """See ``Store.seq_of``."""
        seq = await self._runner.command("seq_of", "HGET", self._document(job_id), "seq")
        return None if seq is None else int(seq)

    async def moved_on(self, seen: Mapping[int, int]) -> list[int]:
        """See ``Store.moved_on``."""
        moved: list[int] = await self._runner.read("moved_on", (list(seen), list(seen.values())))
        return moved

    def _document(self, job_id: str) -> str:
        return f"{self._runner.prefix}job:{job_id}"

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See ``Store.list_jobs``."""
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
        """See ``Store.dead_letters``."""
        after = None if wanted.before_seq is None else str(wanted.before_seq)
        count = min(wanted.limit, _LOOKED_AT)
        ended, picked, looked_at = await self._runner.read(
            "list",
            ([(State.DEAD_LETTERED.name, wanted.queue)], True, after, count, count, wanted.type,
             None, "version", *_asked(wanted)),
        )  # fmt: skip
        found = [(int(seq), int(version)) for seq, version in picked]
        return DeadLetters(found, looked_at, None if ended is None else int(ended))

    async def list_by_time(self, wanted: TimeQuery) -> list[Job]:
        """See ``Store.list_by_time``."""
        if wanted.limit < 1:
            return []
        page: list[Job] = []
        for _ in range(_TRIES):
            ids = await self._page_by_time(wanted)
            page = [job for job in await self._listed(ids) if _matches(job, wanted)]
            if len(page) == len(ids):
                break  # else: some went elsewhere while the page was read
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
        """Numbers grow with the time of creation; within a millisecond ids decide."""
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
            # The millisecond that the page ends in must be known as a whole.
            if ended is None or (len(found) > end and found[-1][0] != found[end - 1][0]):
                break
            after = ended.decode()
        ordered: list[str] = []
        for _, same in groupby(found, key=lambda one: one[0]):
            ordered += sorted(job_id for _, job_id in same)
        return ordered[wanted.offset : end]

    async def history(self, job_id: str, before: int | None) -> list[Event]:
        """See ``Store.history``."""
        found = await self._runner.read("history", (job_id, before, MAX_HISTORY))
        return [documents.event(fields(flat)) for _, flat in found]

    async def events_after(self, position: int, limit: int) -> list[tuple[int, Event]]:
        """See ``Store.events_after``: the stream is in the order of commit."""
        found: list[Any] = await self._runner.command(
            "events_after",
            "XRANGE", f"{self._runner.prefix}events", f"({position}-0", "+", "COUNT", limit,
        )  # fmt: skip
        return [(place_of(place)[0], documents.event(fields(flat))) for place, flat in found]


def _matches(job: Job, wanted: TimeQuery) -> bool:
    if wanted.states and job.state not in wanted.states:
        return False
    if wanted.cancelled is None or job.state is not State.DEAD_LETTERED:
        return True
    return (job.reason is Reason.CANCELLED) is wanted.cancelled


def _asked(wanted: JobFilter) -> tuple[Any, ...]:
    """The last part of what the script is asked."""
    reasons = [one.value for one in wanted.reasons] or None
    return reasons, wanted.error or None, wanted.since, wanted.until
