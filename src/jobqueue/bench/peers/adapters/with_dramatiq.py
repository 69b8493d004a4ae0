"""Measure Dramatiq on a Redis broker.

In the fastest setting more messages are prefetched and an idle worker polls more often
(https://dramatiq.io/reference.html, the environment variables). The broker keeps its middleware
with the retries, because no page recommends to remove it. Dramatiq has no call for a batch: a group
(https://dramatiq.io/cookbook.html) sends its messages one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import dramatiq
from adapter import FASTEST, SLOTS, URL, WORKERS, PeerAdapter, mark, program, slots_of_each
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(n: int) -> None:
    mark(n)


class DramatiqPeer(PeerAdapter):
    package = "dramatiq"
    slots = slots_of_each(8)

    def submit(self, n: int) -> None:
        noop.send(n)

    def submit_batch(self, numbers: Sequence[int]) -> None:
        dramatiq.group([noop.message(n) for n in numbers]).run()

    def left(self) -> int:
        return int(broker.client.hlen("dramatiq:default.msgs"))

    def workers(self) -> list[list[str]]:
        command = [program("dramatiq"), "with_dramatiq", "-p", str(WORKERS)]
        command += ["-t", str(self.slots)] if SLOTS else []
        return [[*command, "--skip-logging"] if FASTEST else command]

    def environment(self) -> dict[str, str]:
        if not FASTEST:
            return {}
        return {"dramatiq_queue_prefetch": "256", "dramatiq_worker_timeout": "10"}


make = DramatiqPeer
