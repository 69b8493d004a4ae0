"""Registers workers, records their heartbeats, removes them, and reads the jobs that they hold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.decide import answer_heartbeat
from jobqueue.core.errors import not_your_worker, too_many_workers
from jobqueue.core.job import (
    Held,
    Pulse,
    Worker,
    WorkerInfo,
    WorkerStatus,
    is_limited,
    owner_allows,
)
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Change, Rules, Term
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.connections import Db
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.leadership import PostgresLeadership
from jobqueue.stores.postgres.notices import Speaker
from jobqueue.stores.postgres.queue_cache import WorkerNameCache
from jobqueue.stores.postgres.runner import Work
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.rows import write_breakers

_FORGET_PROGRESS_EVERY = 60.0  # seconds; what is left of attempts that are over is not shown


class Workers:
    """Implements ``core.store.WorkerStore``."""

    def __init__(
        self,
        database: Database,
        names: WorkerNameCache,
        holding: Holding,
        leadership: PostgresLeadership,
        speaker: Speaker,
        rules: Rules,
    ) -> None:
        self._database = database
        self._names = names
        self._holding = holding
        self._leadership = leadership
        self._speaker = speaker
        self._rules = rules
        self._forget_progress_at = 0.0  # monotonic

    async def register(self, info: WorkerInfo) -> list[Held]:
        now = self._database.now()
        types = None if info.types is None else sorted(_sayable(info.types))
        limited = self._rules.workers_per_owner and is_limited(info.owner)

        async def work(db: Db) -> list[Held]:
            async with db.transaction():
                if limited:
                    await db.execute(SQL["registering"], info.owner)
                incarnation, owner, status = await db.fetchrow(
                    "SELECT incarnation, owner, status FROM workers WHERE id = $1 FOR UPDATE",
                    info.id,
                ) or (None, "", "")
                allowed = owner_allows(owner, info.owner)
                if not allowed and status != WorkerStatus.OFFLINE:
                    raise not_your_worker(info.id)
                if limited:
                    await self._make_room(db, info)
                registered = await db.fetchval(
                    SQL["register_worker"],
                    info.id, info.incarnation, info.hostname, info.pid, info.concurrency,
                    list(info.queues), info.version, now, info.link, types, info.owner,
                )  # fmt: skip
                if registered is None:
                    raise not_your_worker(info.id)
                if incarnation is None or (allowed and incarnation == info.incarnation):
                    return []
                return await reads.held(db, info.id)

        held = await self._database.writing.write("register_worker", work, again=work)
        await self._names.number([info.id])  # claims and reports know it without asking
        self._speaker.say(Change.CONTROL)
        return held

    async def _make_room(self, db: Db, info: WorkerInfo) -> None:
        most = self._rules.workers_per_owner
        if await db.fetchval(SQL["count_owned"], info.owner, info.id) < most:
            return
        if not await db.fetch(SQL["forget_offline"], info.owner, info.id):
            raise too_many_workers(info.owner, most)

    async def _check_owner(self, db: Db, worker_id: str, owner: str) -> None:
        if owner and not owner_allows(await db.fetchval(SQL["owner"], worker_id) or "", owner):
            raise not_your_worker(worker_id)

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
    ) -> Pulse:
        now = self._database.now()

        async def work(db: Db) -> Pulse:
            status = await db.fetchval(SQL["beat"], worker_id, incarnation, now, owner, overrun)
            if status is None:
                await self._check_owner(db, worker_id, owner)
                return Pulse(False)
            standing = await self._standing(db, worker_id, leases)
            answer = answer_heartbeat(WorkerStatus(status), leases, begun, progress, standing)
            late = sorted(
                answer.begun, key=lambda one: one.seq
            )  # as every writer that locks several
            if late:
                jobs = [one.seq for one in late], [one.lease for one in late]
                await db.execute(SQL["leave_held"], *jobs)  # the others keep their due time
                await db.execute(SQL["postpone"], *jobs, now, self._rules.assignment_timeout)
            if progress:
                await self._keep_progress(db, answer.told, standing, now)
            return answer.pulse

        return self._database.beat("pulse", work)

    async def _keep_progress(
        self,
        db: Db,
        told: Mapping[int, Progress],
        standing: Mapping[int, Held],
        now: float | None,
    ) -> None:
        kept = sorted(told)  # as every writer that locks several
        await db.execute(
            SQL["keep_progress"],
            kept,
            [standing[lease].seq for lease in kept],
            [told[lease].value for lease in kept],
            [told[lease].text for lease in kept],
            now,
        )
        if time.monotonic() >= self._forget_progress_at:
            self._forget_progress_at = time.monotonic() + _FORGET_PROGRESS_EVERY
            await db.execute(SQL["forget_progress"])

    async def _standing(self, db: Db, worker_id: str, leases: Sequence[int]) -> dict[int, Held]:
        floor = self._holding.floor(self._names.known.get(worker_id))
        standing = {one.lease: one for one in await reads.held(db, worker_id, floor)}
        if floor and not standing.keys() >= set(leases):
            # Another server may have claimed below it: no worker is told "lost" by a guess.
            standing = {one.lease: one for one in await reads.held(db, worker_id)}
        return standing

    async def set_breakers(
        self, worker_id: str, incarnation: int, breakers: Sequence[OpenBreaker]
    ) -> None:
        column = write_breakers(breakers)

        async def work(db: Db) -> None:
            await db.execute(SQL["set_breakers"], worker_id, incarnation, column)

        await self._database.writing.write("set_breakers", work, again=work)
        self._speaker.say(Change.CONTROL)

    async def held(self, worker_id: str | None = None) -> list[Held]:
        async def work(db: Db) -> list[Held]:
            if worker_id is None and self._holding.slow:
                return await reads.held_from(db, self._holding)
            return await reads.held(db, worker_id)

        return await self._database.reading.read("held", work)

    async def all(self, *, names: bool = True) -> list[Worker]:
        return await self._database.reading.read(
            "workers", lambda db: reads.workers(db, self._holding, names)
        )

    async def infos(self, worker_ids: Sequence[str]) -> list[WorkerInfo]:
        async def work(db: Db) -> list[WorkerInfo]:
            rows = await db.fetch(SQL["worker_infos"], list(worker_ids))
            return [reads.ROWS.info(row) for row in rows]

        return await self._database.reading.read("worker_infos", work)

    async def status(self, worker_id: str) -> WorkerStatus | None:
        async def work(db: Db) -> WorkerStatus | None:
            status = await db.fetchval("SELECT status FROM workers WHERE id = $1", worker_id)
            return None if status is None else WorkerStatus(status)

        return await self._database.reading.read("worker_status", work)

    async def set_status(self, worker_id: str, status: WorkerStatus) -> bool:
        async def work(db: Db) -> bool:
            return await db.fetchval(SQL["set_worker_status"], worker_id, status.value) is not None

        done = await self._database.writing.write("set_worker_status", work, again=work)
        self._speaker.say(Change.CONTROL)
        return done

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        now = self._database.now()

        async def work(db: Db) -> list[str]:
            async with db.transaction():
                await self._leadership.check(db, term)
                rows = await db.fetch(SQL["retire_silent"], now, silent_for)
                return [row[0] for row in rows]

        retired = await self._database.writing.write("retire_silent", work, again=work)
        if retired:
            self._speaker.say(Change.CONTROL)
        return retired

    async def retire(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        async def work(db: Db) -> bool:
            if await db.fetchval(SQL["retire_worker"], worker_id, incarnation, owner) is not None:
                return True
            await self._check_owner(db, worker_id, owner)
            return False

        done = await self._database.writing.write(
            "retire_worker", work, again=_or_gone(work, worker_id)
        )
        self._speaker.say(Change.CONTROL)
        return done

    async def forget(self, worker_id: str) -> bool:
        async def work(db: Db) -> bool:
            return await db.fetchval(SQL["forget_worker"], worker_id) is not None

        return await self._database.writing.write(
            "forget_worker", work, again=_or_gone(work, worker_id)
        )


def _sayable(types: Iterable[str]) -> Iterator[str]:
    """Return the types without a NUL character. No job in PostgreSQL can have one."""
    return (type for type in types if "\0" not in type)


def _or_gone(remove: Work[bool], worker_id: str) -> Work[bool]:
    """Return a repetition of the removal, which returns True also if the worker is gone already."""

    async def again(db: Db) -> bool:
        if await remove(db):
            return True
        return not await db.fetchval("SELECT 1 FROM workers WHERE id = $1", worker_id)

    return again
