"""Assemble the Redis store, which any number of processes may share.

The store is durable if Redis has the settings in ``NEEDED``. Every write is one Lua script, so that
a job, its event and its entries in the queues change together. The time is that of the Redis
server, or that of a test's clock. The keys are listed in ``docs/internals.md``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

from redis.exceptions import ResponseError

from jobqueue.core.clock import Clock
from jobqueue.core.dispatch import DispatchStore
from jobqueue.core.errors import JobQueueError, NotFound, Unavailable
from jobqueue.core.job import ComponentHealth
from jobqueue.core.observer import Observer
from jobqueue.core.store import Change, Rules
from jobqueue.stores.redis.connections import RedisConnections
from jobqueue.stores.redis.documents import fields
from jobqueue.stores.redis.jobs import RedisJobs, RedisUpkeep
from jobqueue.stores.redis.leadership import RedisLeadership
from jobqueue.stores.redis.notices import RedisListener
from jobqueue.stores.redis.queues import RedisQueues
from jobqueue.stores.redis.reads import RedisReads
from jobqueue.stores.redis.restoring import RedisRestore
from jobqueue.stores.redis.runner import ScriptRunner
from jobqueue.stores.redis.schedules import RedisSchedules
from jobqueue.stores.redis.streaming import RedisStream
from jobqueue.stores.redis.workers import RedisWorkers

_log = logging.getLogger("jobqueue.stores.redis")
PREFIX = "{jq}:"
_PATIENCE = 5.0  # seconds that a call waits for a server that is unavailable
# The needed value of each setting, and the consequence of any other value.
NEEDED: Mapping[str, tuple[str, str]] = {
    "appendonly": ("yes", "nothing is written to its disk as it happens"),
    "appendfsync": ("always", "the newest writes are lost when its machine fails"),
    "no-appendfsync-on-rewrite": ("no", "writes are not flushed while the file is rewritten"),
    "maxmemory-policy": ("noeviction", "jobs are thrown away when its memory is full"),
}
_OLDEST = 7  # in earlier versions a script that reads the time cannot write


class RedisStore:
    """Implements ``core.store.Store`` in a Redis database, under keys with one prefix.

    With ``create=False`` the store must already have queues. If ``partitions`` is not 0, each
    worker gets the number of a partition of a Kafka topic, on which it learns of its assignments
    (``partition_of``). The worker's events contain this number.
    """

    name = "redis"
    parallel = True

    def __init__(
        self,
        url: str,
        *,
        rules: Rules | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        prefix: str = PREFIX,
        patience: float = _PATIENCE,
        create: bool = True,
        partitions: int = 0,
    ) -> None:
        rules = rules or Rules()
        observer = observer or Observer()
        self._create = create
        self._connections = connections = RedisConnections(url)
        self._heard: list[Callable[[Change], None]] = []
        self._runner = runner = ScriptRunner(connections, prefix, clock, observer, patience)
        self._listener = RedisListener(connections, f"{prefix}changes", runner.node, self._hear)
        self.jobs = RedisJobs(runner, rules, self._hear)
        self.reads = RedisReads(runner)
        self.upkeep = RedisUpkeep(runner, sorts=create)
        self.queues = RedisQueues(runner)
        self.workers = RedisWorkers(url, runner, rules, observer, partitions)
        self.leadership = RedisLeadership(runner)
        self.schedules = RedisSchedules(runner)
        self.stream = RedisStream(runner)
        self.dispatch = DispatchStore(self.jobs, self.workers)
        self._restoring = RedisRestore(runner, rules)
        self.restore = self._restoring.restore
        self.location = runner.location
        self._lacking: list[str] = ["its settings were not read yet"]

    @property
    def durable(self) -> bool:
        return not self._lacking

    async def open(self) -> None:
        if self._runner.opened:
            return
        prefix = self._runner.prefix
        self._runner.opened = True
        self._connections.open()
        try:
            await _check_version(self._runner)
            await self._restoring.check_none()
            if self._create:
                while (await self.upkeep.sort_ready())[1]:
                    pass
            elif not await self._runner.command("open", "EXISTS", f"{prefix}every_queue"):
                raise NotFound(
                    f"there are no queues in {self.location} under the prefix {prefix}: start"
                    " jq-server, which creates them"
                )
            await self._check_durability()
        except BaseException:
            self._runner.opened = False
            await self._connections.close()
            raise
        self._listener.start()

    async def _check_durability(self) -> None:
        lacking = await _shortcomings(self._runner)
        if lacking and lacking != self._lacking:
            _log.warning(
                "NOT DURABLE: jobs that were accepted can be lost. %s: %s; change these settings",
                self.location,
                "; ".join(lacking),
            )
        self._lacking = lacking

    async def close(self) -> None:
        if not self._runner.opened:
            return
        self._runner.opened = False
        self._heard.clear()
        await self._listener.close()
        self.workers.close()
        await self._connections.close()

    def on_change(self, heard: Callable[[Change], None]) -> None:
        self._heard.append(heard)

    def _hear(self, change: Change) -> None:
        for heard in self._heard:
            heard(change)

    async def ping(self, patience: float | None = None) -> None:
        key = f"{self._runner.prefix}ping"
        await self._runner.command("ping", "SET", key, "", "PX", 60_000, patience=patience)
        await self._check_durability()

    def components(self) -> list[ComponentHealth]:
        if self.durable:
            return []
        detail = f"NOT DURABLE: {'; '.join(self._lacking)}"
        return [ComponentHealth("redis", False, detail)]


async def _check_version(runner: ScriptRunner) -> None:
    """Raise Unavailable if Redis is too old for the scripts."""
    said = await runner.command("open", "INFO", "server")
    found = re.search(rb"^redis_version:(\d+)", said, re.MULTILINE)
    if found is not None and int(found[1]) < _OLDEST:
        raise Unavailable(
            f"{runner.location} has version {int(found[1])}; version {_OLDEST} or newer is needed"
        )


async def _shortcomings(runner: ScriptRunner) -> list[str]:
    """Describe each setting of Redis that can cause the loss of accepted jobs."""
    said: dict[str, str] = {}
    try:
        for names in ("*append*", "maxmemory-policy"):
            found = fields(await runner.command("durability", "CONFIG", "GET", names))
            said |= {name.decode(): value.decode() for name, value in found.items()}
    except JobQueueError as error:
        if not isinstance(error.__cause__, ResponseError):
            raise
        return [f"its settings cannot be read ({error})"]  # as where CONFIG is forbidden
    return [
        f"{name} is {said.get(name, 'unknown')}, not {needed}: {cost}"
        for name, (needed, cost) in NEEDED.items()
        if said.get(name) != needed
    ]
