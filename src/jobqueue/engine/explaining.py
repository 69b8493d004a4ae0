"""Explain why a job does not run, from the store's records and the connected workers."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from jobqueue.core import explain
from jobqueue.core.errors import JobQueueError
from jobqueue.core.explain import Explained, Explanation
from jobqueue.core.job import SUSPECT_AFTER, Job, JobQuery, Page, Worker
from jobqueue.core.lifecycle import HELD, TERMINAL, State
from jobqueue.core.store import Store
from jobqueue.core.waiting import Recent
from jobqueue.engine.held_back import HeldBackJobs
from jobqueue.engine.sessions import Sessions
from jobqueue.engine.settings import EngineSettings
from jobqueue.engine.unserved import Unserved

_MOST_READ = 200  # held jobs
_SILENT_BEATS = 2.5  # heartbeats that are missing when a worker is called silent


class Explainer:
    """Finds the causes for which a job does not run. ``core.explain`` has the rules and words.

    Workers, limits and held jobs may be as they were a second ago.
    """

    def __init__(
        self,
        store: Store,
        settings: EngineSettings,
        sessions: Sessions,
        unserved: Unserved,
        held_back: HeldBackJobs,
        list_jobs: Callable[[JobQuery], Awaitable[Page]],
    ) -> None:
        self._store = store
        self._settings = settings
        self._sessions = sessions
        self._unserved = unserved
        self._held_back = held_back

        async def read_held() -> list[Job]:
            page = await list_jobs(JobQuery(states=tuple(sorted(HELD)), limit=_MOST_READ))
            for job in page.jobs:
                job.spec.payload, job.result = b"", None  # frees the memory
            return page.jobs

        self._held = Recent(read_held)

    async def hint(self, job: Job, now: float) -> str:
        """Return why a claimable job waits, as far as cached reads tell; else an empty text."""
        if job.state is not State.PENDING or explain.not_due(job, now) is not None:
            return ""
        # If the store does not answer, the job is shown without the hint.
        with contextlib.suppress(JobQueueError):
            if (found := await self._unserved.cause(job, now)) is not None:
                return found.text
        with contextlib.suppress(JobQueueError):
            for found in await self._held_back.causes(job):
                return found.text
        return ""

    async def explain(self, job: Job, now: float) -> Explanation:
        """Return the causes for which a job does not run."""
        answer = Explanation(job.id, job.state, now)
        if job.state in TERMINAL:
            answer.causes.append(explain.ended(job))
        elif job.state in HELD:
            answer.causes += await self._held_by_worker(job, now)
        elif job.state is State.FAILED:
            answer.causes.append(explain.waits_for_retry(job, now))
            deaths = await self._deaths(job)
            if deaths >= SUSPECT_AFTER:
                answer.causes.append(explain.runs_alone(deaths))
        else:
            answer.causes += await self._waiting(job, now)
        return answer

    async def _held_by_worker(self, job: Job, now: float) -> list[Explained]:
        worker = next(
            (one for one in await self._unserved.workers() if one.info.id == job.worker_id), None
        )
        deaths = await self._deaths(job) if job.state is State.ASSIGNED else 0
        found = explain.held(
            job,
            worker,
            deaths,
            now,
            silent_after=_SILENT_BEATS * self._settings.heartbeat_interval,
            timeout=self._settings.heartbeat_timeout,
        )
        if found[0].code is explain.Cause.WORKER_SILENT and not await self._is_led():
            found.insert(1, explain.no_leader("takes jobs from silent workers"))
        return found

    async def _waiting(self, job: Job, now: float) -> list[Explained]:
        found = [one for one in (explain.not_due(job, now), explain.ttl_over(job, now)) if one]
        is_claimable = not found
        for stats in await self._store.queues.stats(job.queue):
            if stats.queue.paused:
                found.append(explain.paused(job.queue))
        unserved = await self._unserved.cause(job, now, complete=True)
        if unserved is not None:
            found.append(unserved)
        if is_claimable:
            found += await self._held_back.causes(job)
        if not found:
            found += await self._for_slots(job, now)
        deaths = await self._deaths(job)
        if deaths >= SUSPECT_AFTER:
            found.append(explain.runs_alone(deaths))
        return found

    async def _for_slots(self, job: Job, now: float) -> list[Explained]:
        able = await self._unserved.able(job)
        names = {one.info.id for one in able}
        held = [one for one in await self._held.read() if one.worker_id in names]
        full = explain.no_slot(able, held, now)
        if full is not None:
            return [full]
        if any(one.partition is not None for one in able) and not await self._is_led():
            return [explain.no_leader("hands jobs to these workers")]
        free = [one for one in able if explain.free_slots(one)]
        suspect = await self._suspect(free, held)
        if suspect is not None:
            return [suspect]
        if all(map(self._offers_nothing, free)):
            return [explain.withdrawn(free)]
        return [explain.starting(job, able, now)]

    async def _suspect(self, workers: Sequence[Worker], held: Sequence[Job]) -> Explained | None:
        """Return the cause if each of these workers runs a suspected job alone."""
        first: Explained | None = None
        for worker in workers[: explain.MOST_NAMED]:
            session = self._sessions.get(worker.info.id)
            if session is not None and session.offers:
                return None  # a suspect with a process of its own keeps no slot from others
            mine = [one for one in held if one.worker_id == worker.info.id]
            cause = None
            for one in mine[: explain.MOST_NAMED]:
                deaths = await self._deaths(one)
                if deaths >= SUSPECT_AFTER:
                    cause = explain.suspect_first(one, deaths)
                    break
            if cause is None:
                return None
            first = first or cause
        return first

    def _offers_nothing(self, worker: Worker) -> bool:
        """Return True if the worker is connected to this server and has no slot on offer."""
        session = self._sessions.get(worker.info.id)
        return session is not None and not session.offers and not session.promised

    async def _deaths(self, job: Job) -> int:
        """Return the number of workers that died while they had the job."""
        # Before the hand-over that follows on the deaths, the job had as many attempts.
        if job.attempt < SUSPECT_AFTER:
            return 0
        return explain.deaths_of(await self._store.reads.history(job.id))

    async def _is_led(self) -> bool:
        return await self._store.leadership.leader() is not None
