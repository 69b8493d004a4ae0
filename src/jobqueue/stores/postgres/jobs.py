"""Submits jobs, assigns them to workers and applies their transitions."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from jobqueue.core.decide import news_of
from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Assignment, Held, NewJob, Outcome, Transition
from jobqueue.core.lifecycle import HELD
from jobqueue.core.store import Application, Change, Claim, Rules, Submission
from jobqueue.stores.postgres.applying import Applying
from jobqueue.stores.postgres.claiming import Claiming
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.deciding import Deciding
from jobqueue.stores.postgres.heads import Heads
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.leases import new_row_lease
from jobqueue.stores.postgres.notices import Heard, Speaker, returned
from jobqueue.stores.postgres.queue_cache import QueueCache, WorkerNameCache
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.postgres.submitting import HeldKeys, Slot, Submitting, fit
from jobqueue.stores.postgres.upkeep import Chores
from jobqueue.stores.rows import held_row

_log = logging.getLogger("jobqueue.stores.postgres")


class Jobs:
    """Implements ``core.store.JobStore``. It tells other servers which jobs became claimable."""

    def __init__(
        self,
        database: Database,
        claiming: Claiming,
        names: WorkerNameCache,
        queue_cache: QueueCache,
        heads: Heads,
        holding: Holding,
        chores: Chores,
        speaker: Speaker,
        hear: Heard,
        rules: Rules,
    ) -> None:
        self._database = database
        self._claiming = claiming
        self._names = names
        self._queue_cache = queue_cache
        self._heads = heads
        self._holding = holding
        self._chores = chores
        self._speaker = speaker
        self._hear = hear
        self._rules = rules
        self._held_keys = HeldKeys()

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        slots = await self._slots(jobs, claims) if claims else {}
        now = self._database.now()
        deciding = Deciding(now, self._rules, self._queue_cache, self._names, self._holding)
        batch = Submitting(
            jobs,
            now,
            self._rules,
            self._queue_cache,
            self._heads,
            self._held_keys,
            slots,
            deciding,
        )
        try:
            with self._database.unanswered.write():
                await self._database.writing.write("submit", batch.run, again=batch.again)
        except JobQueueError as error:
            if not batch.give_up(error):
                raise
        if batch.written:
            for head, first in batch.written.items():
                self._heads.lower(head, first)
            self._speaker.say(Change.WORK, batch.written)
        if batch.superseded:
            self._speaker.say(Change.ENDED)
        if deciding.came_back:  # jobs that shared a range with one that was superseded
            for head in deciding.came_back:
                self._heads.lower(head)
            self._speaker.say(Change.WORK, returned(deciding.came_back))
        self._chores.wrote()
        results = [result for result in batch.results if result is not None]
        assigned = batch.assigned
        self._holding.claimed(assigned, self._names.known)
        if batch.written and claims:
            # Not everything was handed off: what is claimable goes to the slots that are left.
            assigned = assigned + await self._claim_quietly(_left(claims, assigned))
        return Submission(results, assigned, batch.superseded)

    async def _slots(self, jobs: Sequence[NewJob], claims: Sequence[Claim]) -> dict[int, Slot]:
        """Return slots, by the job's place, for jobs that their submit may assign at once.

        No other server sees such a job before it is assigned, so the job needs no lock in Redis.
        """
        # The write checks that no other job waits. Dead rows make that as slow as a full look.
        if self._heads.slow:
            return {}
        fitting = fit(jobs, claims)
        numbers = await self._names.number([worker for _, worker, _ in fitting])
        return {
            n: Slot(worker, number, new_row_lease(), claim.types)
            for (n, worker, claim), number in zip(fitting, numbers, strict=True)
        }

    async def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        assigned = await self._claiming.fill(claims)
        if assigned:
            self._holding.claimed(assigned, self._names.known)
            self._chores.wrote()
        return assigned

    async def apply(
        self, transitions: Sequence[Transition], claims: Sequence[Claim] = ()
    ) -> Application:
        batch = Applying(
            transitions,
            self._database.now(),
            self._rules,
            self._queue_cache,
            self._names,
            self._holding,
        )
        try:
            with self._database.unanswered.write():
                await self._database.writing.write("apply", batch.run, again=batch.again)
        except BaseException:
            # Part of it may be written: all who wait for it must look.
            if any(outcome is not None for outcome in batch.outcomes):
                self._hear(Change.WORK | Change.ENDED | Change.CONTROL, None)
            raise
        outcomes = [outcome for outcome in batch.outcomes if outcome is not None]
        for head in batch.came_back:
            self._heads.lower(head)
        freed = self._freed(outcomes) if self._queue_cache.counted else ()
        if freed:
            self._speaker.say(Change.WORK, {})
        change = news_of(transitions, outcomes)
        if batch.came_back and Change.WORK not in change:
            # A job left its range. Meanwhile, claims skipped the other jobs of the range.
            change |= Change.WORK
            self._hear(Change.WORK, {})
        if change:
            self._speaker.say(change, returned(batch.came_back))
        self._chores.wrote()
        # Committed: its answer must not be lost with the claim's.
        return Application(outcomes, await self._claim_quietly(claims), freed)

    def _freed(self, outcomes: Sequence[Outcome]) -> set[str]:
        """Return the queues with a limit of held jobs in which a lease ended."""
        return {
            outcome.queue
            for outcome in outcomes
            if outcome.queue in self._queue_cache.counted
            and outcome.applied
            and outcome.lease is not None
            and outcome.state not in HELD
        }

    async def _claim_quietly(self, claims: Sequence[Claim]) -> list[Assignment]:
        if not claims:
            return []
        try:
            return await self.claim(claims)
        except JobQueueError as error:
            _log.warning(
                "cannot claim jobs after a committed write: %s; a later claim assigns them", error
            )
            return []

    async def request_cancel(self, seq: int) -> Held | None:
        now = self._database.now()

        async def work(db: Db) -> Held | None:
            row = await db.fetchrow(SQL["request_cancel"], seq, now)
            return None if row is None else held_row(row)

        held = await self._database.writing.write("request_cancel", work, again=work)
        if held is not None:
            self._speaker.say(Change.CONTROL)
        return held


def _left(claims: Sequence[Claim], assigned: Sequence[Assignment]) -> list[Claim]:
    """Return the claims, each with only those of its slots that got no job."""
    used = Counter(one.worker_id for one in assigned)
    left = []
    for claim in claims:
        slots = []
        for worker in claim.slots:
            if used[worker]:
                used[worker] -= 1
            else:
                slots.append(worker)
        if slots:
            left.append(Claim(claim.queues, slots, claim.without, claim.types))
    return left
