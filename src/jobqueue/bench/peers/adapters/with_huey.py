"""Huey on Redis.

Worker processes, as for all: https://huey.readthedocs.io/en/latest/consumer.html. Fastest: no
results (https://huey.readthedocs.io/en/latest/api.html), and a consumer without periodic tasks,
health checks and log lines. It has no call for a batch: tasks are enqueued one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter import FASTEST, URL, WORKERS, Peer, mark, program
from huey import RedisHuey

huey = RedisHuey("bench", url=URL, results=not FASTEST)


@huey.task(name="noop")
def noop(n: int) -> None:
    mark(n)


class HueyPeer(Peer):
    package = "huey"

    def submit(self, n: int) -> None:
        noop(n)

    def submit_batch(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            noop(n)

    def left(self) -> int:
        return int(huey.pending_count())

    def workers(self) -> list[list[str]]:
        command = [program("huey_consumer"), "with_huey.huey", "-k", "process"]
        command += ["-w", str(WORKERS)]
        return [[*command, "-n", "-C", "-q"] if FASTEST else command]


make = HueyPeer
