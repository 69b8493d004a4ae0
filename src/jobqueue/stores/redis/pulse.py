"""Heartbeats: on connections of their own, without the loop, which may be blocked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from jobqueue.core.errors import Unavailable, not_your_worker
from jobqueue.core.job import Pulse, WorkerStatus
from jobqueue.core.observer import Observer
from jobqueue.core.progress import Progress
from jobqueue.core.store import Rules
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.runner import Runner
from jobqueue.stores.redis.trouble import TROUBLE, replaced, unavailable

_CONNECT_TIMEOUT = 2.0
_TIMEOUT = 5.0


class Pulses:
    """Takes heartbeats from any thread."""

    def __init__(self, url: str, runner: Runner, rules: Rules, observer: Observer) -> None:
        self._runner = runner
        self._rules = rules
        self._observer = observer
        # A heartbeat may be repeated, and is: once, since its connection may have been idle long.
        self._client: Any = redis.Redis.from_url(
            url,
            protocol=2,
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_CONNECT_TIMEOUT,
            retry=Retry(NoBackoff(), 1),
        )

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int],
        progress: Mapping[int, Progress],
        overrun: int | None,
        withheld: int | None,
        owner: str,
    ) -> Pulse:
        """See ``DispatchStore.pulse``."""
        began = time.perf_counter()
        try:
            said = self._ask(worker_id, incarnation, begun, progress, overrun, withheld, owner)
        finally:
            self._observer.queried("pulse", time.perf_counter() - began)
        if said is None:
            return Pulse(False)
        if said == [b"denied"]:
            raise not_your_worker(worker_id)
        status, rows = said
        standing = {one.lease: one for one in map(documents.held, rows)}
        return Pulse.answer(WorkerStatus(status.decode()), leases, standing)

    def _ask(
        self,
        worker_id: str,
        incarnation: int,
        begun: Sequence[int],
        progress: Mapping[int, Progress],
        overrun: int | None,
        withheld: int | None,
        owner: str,
    ) -> Any:
        if not self._runner.opened:
            raise Unavailable(f"{self._runner.location}: the store is not open")
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
        found, *rest = self._runner.arguments("pulse", asked, "", 0)
        try:
            try:
                return self._client.execute_command("EVALSHA", found.sha, *rest)
            except NoScriptError:
                return self._client.execute_command("EVAL", found.text, *rest)
        except TROUBLE as error:
            if replaced(error):
                self._client.connection_pool.disconnect()
            raise unavailable(error, self._runner.location) from error

    def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(*TROUBLE):
            self._client.close()
