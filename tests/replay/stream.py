"""A store's stream in topics of a test's own."""

from __future__ import annotations

import asyncio

from jobqueue.core.rebuild import Restored, gather
from jobqueue.core.store import Store, Term
from jobqueue.events.kafka import KafkaPublisher
from jobqueue.events.record import Record
from jobqueue.events.relay import Relay
from jobqueue.events.replay import Replay
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import MESSAGE_MARGIN, Topics
from tests import patience
from tests.services.topics import Topics as OwnTopics

PATIENCE = 60.0


class Stream:
    """Publishes and reads."""

    def __init__(self, kafka: OwnTopics) -> None:
        self.topics = Topics(kafka.name("jobs"), kafka.name("dead"), kafka.name("queues"))
        self.settings = KafkaSettings(
            bootstrap=kafka.bootstrap,
            topics=self.topics.all,
            max_message_bytes=(1 << 20) + MESSAGE_MARGIN,
            partitions=3,
            replication=1,
        )

    async def publish(self, store: Store, term: Term) -> None:
        """Until everything is in Kafka."""
        relay = Relay(KafkaPublisher(self.settings), self.topics)
        relay.start(store.stream, lambda: term)
        try:
            async with patience.timeout(PATIENCE):
                while (lag := await store.stream.lag()) is None or lag.events:
                    await asyncio.sleep(0.02)
        finally:
            await relay.stop()

    def read(self) -> Replay:
        found = Replay()
        with Record(self.settings, (self.topics.jobs, self.topics.queues)) as record:
            found.read(record, lambda count: None)
        return found

    async def rebuild(self) -> tuple[Replay, Restored]:
        found = await asyncio.to_thread(self.read)
        found.check()
        return found, gather(found.world, published=True, identity=found.identity())
