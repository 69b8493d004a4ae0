"""Measure RQ on Redis.

In the fastest setting a SimpleWorker runs jobs in its own process instead of a fork for each job
(https://github.com/rq/rq/blob/master/docs/benchmark.md), and with ``result_ttl=0`` a job is deleted
when it has ended (https://python-rq.org/docs/results/). A batch is submitted by ``enqueue_many``
(https://python-rq.org/docs/).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import redis
from adapter import FASTEST, SLOTS, URL, WORKERS, PeerAdapter, mark, program
from rq import Queue

NOOP = "with_rq.noop"


def noop(n: int) -> None:
    mark(n, None if FASTEST else os.getppid())  # each job has a process of its own


class RqPeer(PeerAdapter):
    package = "rq"

    def __init__(self) -> None:
        if SLOTS > WORKERS:
            raise NotImplementedError(
                "slots must not exceed the workers: a worker process runs one job at a time"
            )

    def prepare(self) -> None:
        self._redis = redis.Redis.from_url(URL)
        self._queue = Queue(connection=self._redis)
        self._options = {"result_ttl": 0} if FASTEST else {}

    def submit(self, n: int) -> None:
        self._queue.enqueue(NOOP, n, **self._options)

    def submit_batch(self, numbers: Sequence[int]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(NOOP, (n,), **self._options) for n in numbers])

    def left(self) -> int:
        return self._queue.count + self._redis.zcard(self._queue.started_job_registry.key)

    def workers(self) -> list[list[str]]:
        command = [program("rq"), "worker-pool", "-u", URL, "-n", str(WORKERS), "-P", "."]
        if FASTEST:
            command += ["-w", "rq.worker.SimpleWorker", "-l", "WARNING"]
        return [command]


make = RqPeer
