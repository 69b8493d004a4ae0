"""Keep workers in Redis, write their heartbeats and read their leases.

Heartbeats have separate connections outside the event loop, because the loop may be blocked.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from jobqueue.core.breaker import OpenBreaker
from jobqueue.core.decide import answer_heartbeat
from jobqueue.core.errors import Unavailable, not_your_worker, too_many_workers
from jobqueue.core.job import Held, Pulse, Worker, WorkerInfo, WorkerStatus, is_limited
from jobqueue.core.observer import Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Rules, Term
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.connections import TROUBLE, replaced, unavailable
from jobqueue.stores.redis.runner import ScriptRunner
from jobqueue.stores.rows import write_breakers

_CONNECT_TIMEOUT = 2.0
_TIMEOUT = 5.0


class RedisWorkers:
    """Implements ``core.dispatch.DispatchWorkers``."""

    def __init__(
        self, url: str, runner: ScriptRunner, rules: Rules, observer: Observer, partitions: int
    ) -> None:
        self._runner = runner
        self._rules = rules
        self._observer = observer
        self._partitions = partitions
        # A heartbeat is repeated once: its connection may have been closed while it was idle.
        self._beating: Any = redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_CONNECT_TIMEOUT,
            retry=Retry(NoBackoff(), 1),
        )

    async def register(self, info: WorkerInfo) -> list[Held]:
        said: list[Any] = [
            "hostname", info.hostname, "pid", info.pid, "concurrency", info.concurrency,
            "queues", json.dumps(list(info.queues)), "version", info.version,
            "link", str(info.link), "fallback", int(info.fallback), "overrun", 0, "withheld", 0,
            "breakers", "",
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
        known, partition = await self._runner.command(
            "partition_of",
            "HMGET", f"{self._runner.prefix}worker:{worker_id}", "incarnation", "partition",
        )  # fmt: skip
        if known is None or partition is None or int(known) != incarnation:
            return None
        return int(partition)

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
        withheld: int | None = None,
    ) -> Pulse:
        asked = (
            worker_id,
            str(incarnation),
            [str(lease) for lease in begun],
            self._rules.assignment_timeout,
            withheld,
            {
                str(lease): ("" if said.value is None else repr(said.value), said.text)
                for lease, said in progress.items()
            },
            owner,
            overrun,
        )
        began = time.perf_counter()
        try:
            said = self._beat(asked)
        finally:
            self._observer.queried("pulse", time.perf_counter() - began)
        if said is None:
            return Pulse(False)
        if said == [b"denied"]:
            raise not_your_worker(worker_id)
        status, rows = said
        standing = {one.lease: one for one in map(documents.held, rows)}
        # The script has written begun attempts and progress already.
        return answer_heartbeat(WorkerStatus(status.decode()), leases, (), {}, standing).pulse

    def _beat(self, asked: Sequence[Any]) -> Any:
        if not self._runner.opened:
            raise Unavailable(f"{self._runner.location}: the store is not open")
        found, *rest = self._runner.arguments("pulse", asked, "", 0)
        try:
            try:
                return self._beating.execute_command("EVALSHA", found.sha, *rest)
            except NoScriptError:
                return self._beating.execute_command("EVAL", found.text, *rest)
        except TROUBLE as error:
            if replaced(error):
                self._beating.connection_pool.disconnect()
            raise unavailable(error, self._runner.location) from error

    async def set_breakers(
        self, worker_id: str, incarnation: int, breakers: Sequence[OpenBreaker]
    ) -> None:
        asked = worker_id, str(incarnation), write_breakers(breakers) or ""
        await self._runner.write("set_breakers", asked)

    async def held(self, worker_id: str | None = None) -> list[Held]:
        return [documents.held(row) for row in await self._runner.read("held_leases", (worker_id,))]

    async def all(self, *, names: bool = True) -> list[Worker]:
        found = [documents.worker(*row) for row in await self._runner.read("workers", (names,))]
        return sorted(found, key=lambda one: one.info.id)

    async def infos(self, worker_ids: Sequence[str]) -> list[WorkerInfo]:
        rows = await self._runner.read("worker_infos", (list(worker_ids),))
        return [documents.worker_info(flat) for flat in rows if flat]

    async def status(self, worker_id: str) -> WorkerStatus | None:
        status = await self._runner.command(
            "worker_status", "HGET", f"{self._runner.prefix}worker:{worker_id}", "status"
        )
        return None if status is None else WorkerStatus(status.decode())

    async def set_status(
        self, worker_id: str, status: WorkerStatus, *, incarnation: int | None = None
    ) -> bool:
        life = None if incarnation is None else str(incarnation)
        said = await self._runner.write("set_worker_status", (worker_id, status.value, life))
        return said is not None

    async def retire_silent(self, silent_for: float, term: Term) -> list[str]:
        said = await self._runner.write_under(term, "retire_silent", silent_for)
        return [worker.decode() for worker in said[0]]

    async def retire(self, worker_id: str, incarnation: int, *, owner: str = "") -> bool:
        said = await self._runner.write("remove_worker", (worker_id, str(incarnation), owner))
        if said == [b"denied"]:
            raise not_your_worker(worker_id)
        return said is not None

    async def forget(self, worker_id: str) -> bool:
        return await self._runner.write("remove_worker", (worker_id, None, "")) is not None

    def close(self) -> None:
        """Close the connections of heartbeats."""
        with contextlib.suppress(*TROUBLE):
            self._beating.close()
