"""Measure Huey on Redis.

The workers are processes (https://huey.readthedocs.io/en/latest/consumer.html), as for all peers.
If more slots than processes are needed, the slots are threads. The fastest setting keeps no results
(https://huey.readthedocs.io/en/latest/api.html), and its consumer has no periodic tasks, health
checks and log lines. Workers wait for a task in Redis (BRPOP), so that no polling interval matters.
Huey has no call for a batch: tasks are enqueued one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter import FASTEST, SLOTS, URL, WORKERS, PeerAdapter, mark, program, slots_of_each
from huey import RedisHuey

huey = RedisHuey("bench", url=URL, results=not FASTEST)


@huey.task(name="noop")
def noop(n: int) -> None:
    mark(n)


class HueyPeer(PeerAdapter):
    package = "huey"
    slots = slots_of_each(1)

    def submit(self, n: int) -> None:
        noop(n)

    def submit_batch(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            noop(n)

    def left(self) -> int:
        return int(huey.pending_count())

    def workers(self) -> list[list[str]]:
        command = [program("huey_consumer"), "with_huey.huey"]
        command += ["-n", "-C", "-q"] if FASTEST else []
        if SLOTS <= WORKERS:
            return [[*command, "-k", "process", "-w", str(WORKERS)]]
        return [[*command, "-k", "thread", "-w", str(self.slots)]] * WORKERS


make = HueyPeer
