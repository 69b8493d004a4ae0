"""Read hints from Kafka in a thread, and pass them to the event loop.

The reader belongs to no consumer group and commits no offsets. It reads only the hints that are
written after it started; its users read the store for everything earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka

from jobqueue.core.dispatch import Hint
from jobqueue.events.codec import UnknownRecord
from jobqueue.events.settings import KafkaSettings
from jobqueue.events.topics import decode_hint

_log = logging.getLogger("jobqueue.events.dispatch")
_POLL = 0.1
_AT_ONCE = 1_000
_ASK = 2.0  # seconds until a request to Kafka times out
_AGAIN = 0.5  # seconds between two tries
_GOODBYE = 5.0  # seconds to wait for the thread at a stop
_PATIENT_TRIES = 3  # partitions of a new topic have no leader at first


class HintReader:
    """Implements ``core.dispatch.HintSource`` for topics in Kafka.

    The reader reads either all partitions of a topic or a single partition.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Mapping[str, int | None],  # the partition to read; None: every partition
        *,
        placed: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._placed = placed or (lambda: None)  # the loop calls it when reading has begun
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False
        self._tries = 0

    def start(
        self, heard: Callable[[Sequence[Hint]], None], wanted: Callable[[], bool] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._wanted = wanted or (lambda: True)
        self._thread = threading.Thread(target=self._run, name="jobqueue-hints", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        self._ended.set()
        if thread is not None:
            await asyncio.to_thread(thread.join, _GOODBYE)

    # -- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            if not self._wanted():
                self._ended.wait(_POLL)
                continue
            consumer = None
            try:
                consumer = self._consumer()
                while self._goes_on() and not self._place(consumer):
                    self._ended.wait(_AGAIN)
                while self._goes_on():
                    self._read(consumer)
            except confluent_kafka.KafkaException as error:
                self._failed(error.args[0])
            except Exception:
                _log.exception(
                    "unexpected error while reading hints from Kafka at %s; trying again in %g s",
                    self._settings.bootstrap,
                    _AGAIN,
                )
            finally:
                if consumer is not None:
                    consumer.close()
            if self._goes_on():
                self._ended.wait(_AGAIN)

    def _goes_on(self) -> bool:
        return self._wanted() and not self._ended.is_set()

    def _consumer(self) -> Any:
        return confluent_kafka.Consumer(
            {
                **self._settings.client(),
                "group.id": "jobqueue-hints",  # required, but not used: nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 100,  # a short latency, for small messages
                "error_cb": self._failed,
            }
        )

    def _place(self, consumer: Any) -> bool:
        """Set the consumer to the ends of the partitions.

        Return False if a topic or its partition does not exist, or Kafka does not answer.
        """
        places = []
        try:
            for topic, one in self._topics.items():
                found = consumer.list_topics(topic, timeout=_ASK).topics[topic]
                if found.error is not None or not found.partitions:
                    return False  # the leader creates the topics
                if one is not None and one not in found.partitions:
                    self._lacks(topic, one)
                    return False
                for number in found.partitions if one is None else (one,):
                    place = confluent_kafka.TopicPartition(topic, number)
                    _, place.offset = consumer.get_watermark_offsets(place, timeout=_ASK)
                    places.append(place)
        except confluent_kafka.KafkaException as error:
            tries, self._tries = self._tries, self._tries + 1
            if tries >= _PATIENT_TRIES:
                self._failed(error.args[0])
            return False
        consumer.assign(places)
        self._recovered()
        self._call(self._placed)
        return True

    def _read(self, consumer: Any) -> None:
        first = consumer.poll(_POLL)
        if first is None:
            return
        hints: list[Hint] = []
        for message in (first, *consumer.consume(_AT_ONCE, 0)):
            if message.error() is not None:
                self._failed(message.error())
                continue
            try:
                hints.append(decode_hint(message.value()))
            except UnknownRecord as error:
                _log.warning(
                    "skipping offset %d of topic %s, partition %d: %s",
                    message.offset(),
                    message.topic(),
                    message.partition(),
                    error,
                )
        if hints:
            self._recovered()
            self._call(self._heard, hints)

    def _failed(self, error: Any) -> None:
        if not self._failing:
            self._failing = True
            _log.warning(
                "cannot read hints from Kafka at %s: %s; the store is read at intervals instead,"
                " so that jobs start later",
                self._settings.bootstrap,
                error.str(),
            )

    def _lacks(self, topic: str, partition: int) -> None:
        tries, self._tries = self._tries, self._tries + 1
        if tries >= _PATIENT_TRIES and not self._failing:
            self._failing = True
            _log.warning(
                "topic %s has no partition %d; the store is read at intervals instead, so that jobs"
                " start later; set this worker's kafka.assignment_partitions to the servers' value",
                topic,
                partition,
            )

    def _recovered(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("hints are read from Kafka at %s again", self._settings.bootstrap)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(callback, *arguments)
