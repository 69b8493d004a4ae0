"""Measure Celery on a Redis broker.

Sources of the fastest setting:
https://docs.celeryq.dev/en/stable/userguide/optimizing.html (a large prefetch multiplier
for many short tasks, a connection for each caller), its configuration page
(``worker_disable_rate_limits``), https://docs.celeryq.dev/en/stable/userguide/tasks.html
(``ignore_result``) and workers that do not gossip
(https://docs.celeryq.dev/en/stable/userguide/workers.html). The pool is prefork, which
https://docs.celeryq.dev/en/stable/userguide/concurrency/index.html recommends. If more slots than
processes are needed, the slots are threads. Celery has no call for a batch: a group sends its tasks
one after the other on one connection, which
https://docs.celeryq.dev/en/stable/userguide/calling.html prefers to a loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis
from adapter import FASTEST, SLOTS, URL, WORKERS, PeerAdapter, mark, program, slots_of_each
from celery import Celery, group

app = Celery("bench", broker=URL)
app.conf.broker_connection_retry_on_startup = True  # without it Celery warns
if FASTEST:
    app.conf.update(
        worker_prefetch_multiplier=128,
        worker_disable_rate_limits=True,
        task_ignore_result=True,
        broker_pool_limit=50,
    )


@app.task(name="noop")
def noop(n: int) -> None:
    mark(n)


class CeleryPeer(PeerAdapter):
    package = "celery"
    slots = slots_of_each(1)

    def prepare(self) -> None:
        self._redis = redis.Redis.from_url(URL)

    def submit(self, n: int) -> None:
        noop.delay(n)

    def submit_batch(self, numbers: Sequence[int]) -> None:
        group(noop.s(n) for n in numbers).apply_async()

    def left(self) -> int:
        return self._redis.llen("celery") + self._redis.hlen("unacked")

    def workers(self) -> list[list[str]]:
        command = [program("celery"), "-A", "with_celery", "worker"]
        if FASTEST:
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        if SLOTS <= WORKERS:
            return [[*command, "-c", str(WORKERS)]]
        command += ["-P", "threads", "-c", str(self.slots)]
        return [[*command, "-n", f"worker{number}@%h"] for number in range(WORKERS)]


make = CeleryPeer
