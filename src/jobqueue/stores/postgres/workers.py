"""Workers: registered, heard of, retired; and what they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jobqueue.core.job import Held, Pulse, Worker, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Change, Rules, Term
from jobqueue.stores.postgres import reads
from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.holding import Holding
from jobqueue.stores.postgres.leadership import Leadership
from jobqueue.stores.postgres.notices import Speaker
from jobqueue.stores.postgres.runner import Work
from jobqueue.stores.postgres.statements import SQL
from jobqueue.stores.postgres.worker_names import WorkerNames


class Workers:
    """The calls about workers."""

    def __init__(
        self,
        database: Database,
        names: WorkerNames,
        holding: Holding,
        leadership: Leadership,
        speaker: Speaker,
        rules: Rules,
    ) -> None:
        self._database = database
        self._names = names
        self._holding = holding
        self._leadership = leadership
        self._speaker = speaker
        self._rules = rules

    async def register(self, info: WorkerInfo) -> list[Held]:
        """See ``Store.register_worker``."""
        now = self._database.now()
        types = None if info.types is None else sorted(_sayable(info.types))
        await self._names.number([info.id])

        async def work(db: Any) -> list[Held]:
            async with db.transaction():
                before = await db.fetchval(
                    "SELECT incarnation FROM workers WHERE id = $1 FOR UPDATE", info.id
                )
                await db.execute(
                    SQL["register_worker"],
                    info.id, info.incarnation, info.hostname, info.pid, info.concurrency,
                    list(info.queues), info.version, now, info.link, types,
                )  # fmt: skip
                if before is None or before == info.incarnation:
                    return []
                return await reads.held(db, info.id)

        held = await self._database.writing.write("register_worker", work, again=work)
        self._speaker.say(Change.CONTROL)
        return held

    def pulse(
        self, worker_id: str, incarnation: int, leases: Sequence[int], begun: Sequence[int]
    ) -> Pulse:
        """See ``Store.pulse``."""
        now = self._database.now()

        async def work(db: Any) -> Pulse:
            status = await db.fetchval(SQL["beat"], worker_id, incarnation, now)
            if status is None:
                return Pulse(False)
            standing = await self._standing(db, worker_id, leases)
            late = [
                one
                for lease in begun
                if (one := standing.get(lease)) is not None and one.state is State.ASSIGNED
            ]
            late.sort(key=lambda one: one.seq)  # as everybody who locks several
            if late:
                await db.execute(
                    SQL["postpone"],
                    [one.seq for one in late],
                    [one.lease for one in late],
                    now,
                    self._rules.assignment_timeout,
                )
            answer = Pulse(True, WorkerStatus(status))
            for lease in leases:
                one = standing.pop(lease, None)
                if one is None:
                    answer.lost.append(lease)
                elif one.cancel_requested:
                    answer.cancelled.append(lease)
            answer.unlisted = list(standing.values())
            return answer

        return self._database.beat("pulse", work)

    async def _standing(self, db: Any, worker_id: str, leases: Sequence[int]) -> dict[int, Held]:
        """What a worker holds, by lease."""
        floor = self._holding.floor(self._names.known.get(worker_id))
        standing = {one.lease: one for one in await reads.held(db, worker_id, floor)}
        if floor and not standing.keys() >= set(leases):
            # Another server may have claimed below it: nobody is told "lost" by a guess.
            standing = {one.lease: one for one in await reads.held(db, worker_id)}
        return standing

    async def held(self, worker_id: str | None) -> list[Held]:
        """See ``Store.held``."""

        async def work(db: Any) -> list[Held]:
            if worker_id is None and self._holding.slow:
                return await reads.held_from(db, self._holding)
            return await reads.held(db, worker_id)

        return await self._database.reading.read("held", work)

    async def every(self) -> list[Worker]:
        """See ``Store.workers``."""
        return await self._database.reading.read(
            "workers", lambda db: reads.workers(db, self._holding)
        )

    async def set_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """See ``Store.set_worker_status``."""

        async def work(db: Any) -> bool:
            return await db.fetchval(SQL["set_worker_status"], worker_id, status.value) is not None

        done = await self._database.writing.write("set_worker_status", work, again=work)
        self._speaker.say(Change.CONTROL)
        return done

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """See ``Store.retire_silent``."""
        now = self._database.now()

        async def work(db: Any) -> list[str]:
            async with db.transaction():
                await self._leadership.check(db, term)
                rows = await db.fetch(SQL["retire_silent"], now, silent_for)
                return [row[0] for row in rows]

        retired = await self._database.writing.write("retire_silent", work, again=work)
        if retired:
            self._speaker.say(Change.CONTROL)
        return retired

    async def retire(self, worker_id: str, incarnation: int) -> bool:
        """See ``Store.retire_worker``."""

        async def work(db: Any) -> bool:
            return await db.fetchval(SQL["retire_worker"], worker_id, incarnation) is not None

        done = await self._database.writing.write(
            "retire_worker", work, again=_or_gone(work, worker_id)
        )
        self._speaker.say(Change.CONTROL)
        return done

    async def forget(self, worker_id: str) -> bool:
        """See ``Store.forget_worker``."""

        async def work(db: Any) -> bool:
            return await db.fetchval(SQL["forget_worker"], worker_id) is not None

        return await self._database.writing.write(
            "forget_worker", work, again=_or_gone(work, worker_id)
        )


def _sayable(types: Iterable[str]) -> Iterator[str]:
    """PostgreSQL's text has no NUL, and no job in it has a type with one."""
    return (type for type in types if "\0" not in type)


def _or_gone(remove: Work[bool], worker_id: str) -> Work[bool]:
    """After a lost answer: a worker that is not there any more was removed then."""

    async def again(db: Any) -> bool:
        if await remove(db):
            return True
        return not await db.fetchval("SELECT 1 FROM workers WHERE id = $1", worker_id)

    return again
