"""Compare the events in Kafka with the events in PostgreSQL.

The query is not the relay's, so that an event which the relay overlooks is found.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import asyncpg
import confluent_kafka

from jobqueue.core.job import Event
from jobqueue.core.lifecycle import State
from jobqueue.core.stream import JobEvent, StreamItem
from jobqueue.events.codec import decode
from jobqueue.stores.postgres.reads import ROWS

_PATIENCE = 30.0
_PAUSE = 0.1
_COMING = (
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
)
_AT_ONCE = 5_000
# The query reads the whole tables: the relay finds new events in another way.
_EVENTS = """
SELECT r.id, e.version, e.from_state, e.to_state, e.reason, e.at, e.attempt, w.name, e.detail,
       q.name
FROM (SELECT seq, version, from_state, to_state, reason, at, attempt, worker, detail FROM job_event
      UNION ALL
      SELECT seq, version, from_state, to_state, reason, at, attempt, worker, NULL FROM batch_event)
     AS e
JOIN job_record AS r ON r.seq = e.seq JOIN queues AS q ON q.id = r.queue
LEFT JOIN worker_name AS w ON w.id = e.worker
"""


class StreamDiffers(AssertionError):
    """Raised when the stream differs from the events of the store."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """Holds a message of a topic, and the time when it was read."""

    partition: int
    offset: int
    key: str
    item: StreamItem
    seen_at: float


class Reader:
    """Reads a topic from its beginning with blocking calls."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench",  # the client requires a group, but this code uses none
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Reader:
        found = self._partitions_of_topic()
        first = confluent_kafka.OFFSET_BEGINNING
        self._partitions = [
            confluent_kafka.TopicPartition(self._topic, number, first) for number in found
        ]
        self._consumer.assign(self._partitions)
        return self

    def _partitions_of_topic(self) -> list[int]:
        """Wait until the topic exists, and return its partitions.

        A server creates topics some time after its start.
        """
        give_up = time.monotonic() + _PATIENCE
        while True:
            found = self._consumer.list_topics(self._topic, timeout=_PATIENCE).topics[self._topic]
            if found.partitions:
                return list(found.partitions)
            if time.monotonic() > give_up:
                raise TimeoutError(f"topic {self._topic} does not exist after {_PATIENCE:g} s")
            time.sleep(_PAUSE)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def poll(self, seconds: float = 0.2) -> list[StreamMessage]:
        """Return the messages that arrive within ``seconds``."""
        messages = self._consumer.consume(_AT_ONCE, seconds)
        now = time.time()
        return [
            StreamMessage(
                message.partition(),
                message.offset(),
                message.key().decode(),
                decode(message.value()),
                now,
            )
            for message in messages
            if message.error() is None
        ]

    def all(self) -> Iterator[StreamMessage]:
        """Yield all messages that the topic has at the time of the call."""
        left = {}
        for one in self._partitions:
            left[one.partition] = self._end_of(one)
        give_up = time.monotonic() + _PATIENCE
        while any(self._place(number) < end for number, end in left.items()):
            if found := self.poll():
                give_up = time.monotonic() + _PATIENCE
                yield from found
            elif time.monotonic() > give_up:
                raise TimeoutError(
                    f"cannot read topic {self._topic} to its end: no message for {_PATIENCE:g} s"
                )

    def _end_of(self, partition: confluent_kafka.TopicPartition) -> int:
        """Return the offset after the partition's last message.

        Waits until a restarted broker leads the partition.
        """
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                _, end = self._consumer.get_watermark_offsets(partition, timeout=_PATIENCE)
            except confluent_kafka.KafkaException as failure:
                if failure.args[0].code() not in _COMING or time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE)
            else:
                return int(end)

    def _place(self, partition: int) -> int:
        (one,) = self._consumer.position([confluent_kafka.TopicPartition(self._topic, partition)])
        return int(one.offset)  # negative before the first message


@dataclass(frozen=True, slots=True)
class StreamComparison:
    """Counts the jobs, events and messages of a stream that equals the store."""

    jobs: int
    events: int
    records: int
    ends: Counter[State]

    @property
    def repeated(self) -> int:
        """Return the number of messages that repeat an earlier message."""
        return self.records - self.events


async def written(dsn: str) -> dict[str, Event]:
    """Return all events in PostgreSQL by event id."""
    db = await asyncpg.connect(dsn)
    try:
        rows = await db.fetch(_EVENTS)
    finally:
        await db.close()
    events = map(ROWS.event, rows)
    return {f"{event.job_id}:{event.version}": event for event in events}


def compare(
    events: dict[str, Event], jobs: Iterable[StreamMessage], dead: Iterable[StreamMessage]
) -> StreamComparison:
    """Compare the messages with the store's events. Raises StreamDiffers if they differ."""
    seen, latest, records = _read(events, jobs)
    if missing := events.keys() - seen:
        raise StreamDiffers(f"{len(missing)} events are not in Kafka, such as {min(missing)}")
    died = {one for one, event in events.items() if event.to_state is State.DEAD_LETTERED}
    again = {record.item.event_id for record in dead}
    if again != died:
        raise StreamDiffers(
            f"the topic of dead letters has {len(again - died)} wrong events and lacks"
            f" {len(died - again)}"
        )
    ends = Counter(events[f"{job}:{version}"].to_state for job, version in latest.items())
    return StreamComparison(len(latest), len(events), records, ends)


def _read(
    events: dict[str, Event], found: Iterable[StreamMessage]
) -> tuple[set[str], dict[str, int], int]:
    """Check the order of the messages against the store's events.

    Returns the ids of the seen events, each job's latest version, and the number of messages.
    """
    seen: set[str] = set()
    latest: dict[str, int] = {}
    partitions: dict[str, int] = {}  # of each key
    place: dict[int, int] = {}
    records = 0
    for record in found:
        if place.setdefault(record.partition, -1) >= record.offset:
            raise StreamDiffers(f"partition {record.partition} was not read in order of offsets")
        place[record.partition] = record.offset
        item = record.item
        if not isinstance(item, JobEvent):
            continue
        records += 1
        event, event_id = item.event, item.event_id
        first = partitions.setdefault(record.key, record.partition)
        if record.key != event.job_id or first != record.partition:
            raise StreamDiffers(
                f"event {event_id} has key {record.key} and partition {record.partition},"
                f" expected key {event.job_id} and partition {first}"
            )
        if events.get(event_id) != event:
            raise StreamDiffers(
                f"event {event_id} is {event} in Kafka, {events.get(event_id)} in the store"
            )
        if event_id in seen:
            continue
        if event.version != latest.get(event.job_id, 0) + 1:
            raise StreamDiffers(
                f"event {event_id} follows version {latest.get(event.job_id, 0)} of its job: an"
                " event is missing or out of order"
            )
        seen.add(event_id)
        latest[event.job_id] = event.version
    return seen, latest, records
