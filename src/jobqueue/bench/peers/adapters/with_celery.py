"""Celery on a Redis broker.

Fastest: https://docs.celeryq.dev/en/stable/userguide/optimizing.html (a large prefetch multiplier
for many short tasks, a connection for each caller), its configuration page
(``worker_disable_rate_limits``), https://docs.celeryq.dev/en/stable/userguide/tasks.html
(``ignore_result``) and workers that do not gossip
(https://docs.celeryq.dev/en/stable/userguide/workers.html). It has no call for a batch: a group
(https://docs.celeryq.dev/en/stable/userguide/canvas.html) sends its tasks one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis
from adapter import FASTEST, URL, WORKERS, Peer, mark, program
from celery import Celery, group

app = Celery("bench", broker=URL)
app.conf.broker_connection_retry_on_startup = True  # or it warns
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


class CeleryPeer(Peer):
    package = "celery"

    def prepare(self) -> None:
        self._redis = redis.Redis.from_url(URL)

    def submit(self, n: int) -> None:
        noop.delay(n)

    def submit_batch(self, numbers: Sequence[int]) -> None:
        group(noop.s(n) for n in numbers).apply_async()

    def left(self) -> int:
        return self._redis.llen("celery") + self._redis.hlen("unacked")

    def workers(self) -> list[list[str]]:
        command = [program("celery"), "-A", "with_celery", "worker", "-c", str(WORKERS)]
        if FASTEST:
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        return [command]


make = CeleryPeer
