"""A relay in a process of its own, which kills itself where it is told to.

    python -m tests.events.relay_child STORE_URL BOOTSTRAP PREFIX [FAILPOINT TIMES]

Without a failpoint it ends when nothing is left to publish.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import ExitStack

from jobqueue.connect.backends import create_store
from jobqueue.core.observer import armed
from jobqueue.engine.leadership import Leadership
from jobqueue.events.kafka import KafkaPublisher
from jobqueue.events.relay import Relay
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import MESSAGE_MARGIN, Topics

TTL = 1.0


async def main(url: str, bootstrap: str, prefix: str, place: str = "", times: str = "1") -> None:
    left = int(times)

    async def die() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    store = create_store(url)
    await store.open()
    leadership = Leadership(store.leadership, TTL, lambda: None)
    topics = Topics(f"{prefix}jobs", f"{prefix}dead", f"{prefix}queues")
    settings = KafkaSettings(
        bootstrap=bootstrap,
        topics=topics.all,
        max_message_bytes=(1 << 20) + MESSAGE_MARGIN,
        replication=1,
    )
    relay = Relay(KafkaPublisher(settings), topics)
    with ExitStack() as stack:
        if place:
            stack.enter_context(armed(place, die))
        leadership.start()
        relay.start(store.stream, lambda: leadership.term)
        while place or (lag := await store.stream.lag()) is None or lag.events:
            await asyncio.sleep(0.05)
    await relay.stop()
    await leadership.stop()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
