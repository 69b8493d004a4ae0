"""Workers: registered, heard of, retired; and what they hold."""

from __future__ import annotations

import json
from typing import Any

from jobqueue.core.errors import not_your_worker, too_many_workers
from jobqueue.core.job import Held, Worker, WorkerInfo, WorkerStatus, is_limited
from jobqueue.core.store import Rules, Term, TermEnded
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.leadership import term_of
from jobqueue.stores.redis.runner import Runner


class Workers:
    """The calls about workers, but for the heartbeat."""

    def __init__(self, runner: Runner, rules: Rules, partitions: int) -> None:
        self._runner = runner
        self._rules = rules
        self._partitions = partitions

    async def register(self, info: WorkerInfo) -> list[Held]:
        """See ``Store.register_worker``."""
        said: list[Any] = [
            "hostname", info.hostname, "pid", info.pid, "concurrency", info.concurrency,
            "queues", json.dumps(list(info.queues)), "version", info.version,
            "link", str(info.link), "fallback", int(info.fallback), "overrun", 0, "withheld", 0,
            "types", json.dumps(None if info.types is None else sorted(info.types)),
            "owner", info.owner,
        ]  # fmt: skip
        most = self._rules.workers_per_owner if is_limited(info.owner) else 0
        answer, *rows = await self._runner.write(
            "register_worker",
            (info.id, str(info.incarnation), said, self._partitions, info.owner, most),
        )
        if answer == b"denied":
            raise not_your_worker(info.id)
        if answer == b"full":
            raise too_many_workers(info.owner, most)
        return [documents.held(row) for row in rows[0]]

    async def partition_of(self, worker_id: str, incarnation: int) -> int | None:
        """See ``RedisStore.partition_of``."""
        known, partition = await self._runner.command(
            "partition_of",
            "HMGET", f"{self._runner.prefix}worker:{worker_id}", "incarnation", "partition",
        )  # fmt: skip
        if known is None or partition is None or int(known) != incarnation:
            return None
        return int(partition)

    async def held(self, worker_id: str | None) -> list[Held]:
        """See ``Store.held``."""
        return [documents.held(row) for row in await self._runner.read("held_leases", (worker_id,))]

    async def every(self) -> list[Worker]:
        """See ``Store.workers``."""
        found = [documents.worker(*row) for row in await self._runner.read("workers")]
        return sorted(found, key=lambda one: one.info.id)

    async def set_status(
        self, worker_id: str, status: WorkerStatus, incarnation: int | None
    ) -> bool:
        """See ``RedisStore.set_worker_status``."""
        life = None if incarnation is None else str(incarnation)
        said = await self._runner.write("set_worker_status", (worker_id, status.value, life))
        return said is not None

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        """See ``Store.retire_silent``."""
        said = await self._runner.write("retire_silent", (silent_for, term_of(term)))
        if said is None:
            raise TermEnded
        return [worker.decode() for worker in said[0]]

    async def retire(self, worker_id: str, incarnation: int, owner: str) -> bool:
        """See ``Store.retire_worker``."""
        said = await self._runner.write("remove_worker", (worker_id, str(incarnation), owner))
        if said == [b"denied"]:
            raise not_your_worker(worker_id)
        return said is not None

    async def forget(self, worker_id: str) -> bool:
        """See ``Store.forget_worker``."""
        return await self._runner.write("remove_worker", (worker_id, None, "")) is not None
