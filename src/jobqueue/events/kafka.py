"""Kafka as a publisher: librdkafka's idempotent producer, and the topics it writes to.

A message never times out: as long as the brokers are away the producer keeps it, and sends it in
its order when they are back. So nothing is sent out of turn after an outage, and the relay has one
thing to do: wait. What a broker refuses for good is told apart from everything that somebody can
mend.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic

from jobqueue.core.errors import JobQueueError
from jobqueue.core.identity import Writer
from jobqueue.events.publisher import Message, PublishFailed, Refused
from jobqueue.events.record import latest_writers
from jobqueue.events.settings import KafkaSettings, said

_log = logging.getLogger("jobqueue.events.kafka")
_ADMIN_TIMEOUT = 5.0
_PROBE_TIMEOUT = 2.0
_POLL = 0.1
_GOODBYE = 2.0

_BATCH_BYTES = 1_000_000  # librdkafka's own default
# A hint is of use for seconds. What is kept is for people who look for what happened.
_HINTS_KEPT = {"retention.ms": str(24 * 3600 * 1000), "cleanup.policy": "delete"}

_Error = confluent_kafka.KafkaError
_TOO_LARGE = frozenset({_Error.MSG_SIZE_TOO_LARGE, _Error.RECORD_LIST_TOO_LARGE})
# However often it is sent, the answer will be the same.
_FOR_GOOD = frozenset({*_TOO_LARGE, _Error.INVALID_RECORD, _Error.POLICY_VIOLATION})


class _Batch:
    """Messages that were sent together. Counted down by the polling thread.

    A broker refuses what librdkafka put into one request as a whole. So a message that is said to
    be too large, although it is smaller than ``limit``, may only have been in bad company.
    """

    def __init__(
        self, messages: Sequence[Message], limit: int, done: Callable[[_Batch], None]
    ) -> None:
        self._messages = messages
        self._limit = limit
        self.left = len(messages)
        self.refused: list[Refused] = []
        self.failed = ""
        self.bad_company = False
        self.untimely = False
        self._done = done

    def delivered(self, error: Any, report: Any) -> None:
        """The fate of one, as librdkafka tells it. It comes for each message: no object is made for
        it before something is wrong."""
        if error is None:
            self._passed()
        else:
            sent = (report.topic(), report.value())
            self.not_taken(next(m for m in self._messages if (m.topic, m.value) == sent), error)

    def not_taken(self, message: Message, error: Any) -> None:
        """One was refused, or lost."""
        code = error.code()
        innocent = code in _TOO_LARGE and len(message.key) + len(message.value) <= self._limit
        if code in _FOR_GOOD and not innocent:
            self.refused.append(Refused(message.topic, message.event_id, error.str()))
        else:
            self.bad_company = self.bad_company or innocent
            self.untimely = self.untimely or code == _Error.INVALID_TIMESTAMP
            self.failed = self.failed or f"{message.topic}: {error.str()}"
        self._passed()

    def _passed(self) -> None:
        self.left -= 1
        if not self.left:
            self._done(self)


class KafkaPublisher:
    """Implements ``Publisher``."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._polling: threading.Thread | None = None
        self._ended = threading.Event()
        self._waiting: dict[_Batch, asyncio.Future[list[Refused]]] = {}
        self._trouble = ""
        self._batch_bytes = _BATCH_BYTES
        self._singly = False  # each message in a request of its own
        self._dated = True  # with the time of its event
        self._used: Sequence[str] = settings.topics  # those that may hold something

    @property
    def address(self) -> str:
        """See ``Publisher.address``."""
        return self._settings.bootstrap

    @property
    def trouble(self) -> str:
        """See ``Publisher.trouble``."""
        return self._trouble

    async def open(self) -> None:
        """See ``Publisher.open``."""
        if self._producer is not None:
            return
        try:
            smallest, self._used = await asyncio.to_thread(make_topics, self._settings)
        except confluent_kafka.KafkaException as error:
            raise PublishFailed(said(error)) from error
        except TimeoutError as error:  # it went away in the middle
            raise PublishFailed(f"no answer for {_ADMIN_TIMEOUT:g} s") from error
        self._loop = asyncio.get_running_loop()
        self._trouble = ""
        self._ended = threading.Event()
        limit = self._settings.max_message_bytes
        # No request is larger than what every topic takes, unless it is one message.
        self._batch_bytes = min(_BATCH_BYTES, smallest)
        self._producer = confluent_kafka.Producer(
            {
                **self._settings.client(),
                "enable.idempotence": True,
                "acks": "all",
                "delivery.timeout.ms": 0,  # never: see above
                "message.max.bytes": limit,
                "linger.ms": 5,
                "batch.num.messages": 1 if self._singly else 10_000,
                "batch.size": self._batch_bytes,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 2_000_000,  # the relay bounds what is under way
                "error_cb": self._failed,
            }
        )
        self._polling = threading.Thread(
            target=_poll, args=(self._producer, self._ended), name="jobqueue-kafka", daemon=True
        )
        self._polling.start()

    async def writers(self) -> set[Writer]:
        """See ``Publisher.writers``."""
        try:
            return await asyncio.to_thread(
                latest_writers, self._settings, self._used, _ADMIN_TIMEOUT
            )
        except JobQueueError as error:
            raise PublishFailed(str(error)) from error

    async def probe(self) -> None:
        """See ``Publisher.probe``."""
        try:
            await asyncio.to_thread(check, self._settings, _PROBE_TIMEOUT)
        except confluent_kafka.KafkaException as error:
            raise PublishFailed(said(error)) from error

    async def close(self) -> None:
        """See ``Publisher.close``."""
        producer, self._producer = self._producer, None
        polling, self._polling = self._polling, None
        if producer is None or polling is None:
            return
        ended = self._ended

        def end() -> None:
            producer.purge()
            producer.flush(_GOODBYE)
            ended.set()
            polling.join(_GOODBYE)

        await asyncio.to_thread(end)
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()

    def send(self, messages: Sequence[Message]) -> asyncio.Future[list[Refused]]:
        """See ``Publisher.send``."""
        waiting: asyncio.Future[list[Refused]] = asyncio.get_running_loop().create_future()
        producer = self._producer
        if producer is None:
            waiting.set_exception(PublishFailed("not open"))
            return waiting
        if not messages:
            waiting.set_result([])
            return waiting
        batch = _Batch(messages, 0 if self._singly else self._batch_bytes, self._done)
        self._waiting[batch] = waiting
        produce, delivered = producer.produce, batch.delivered
        now = time.time()  # brokers refuse what lies far ahead
        for message in messages:
            at = message.at if self._dated else None
            try:
                produce(
                    message.topic,
                    message.value,
                    message.key,
                    partition=message.partition,
                    on_delivery=delivered,
                    headers=message.headers,
                    timestamp=0 if at is None else max(1, int(min(at, now) * 1000)),
                )
            except confluent_kafka.KafkaException as error:  # too large for this client already
                self._loop.call_soon(batch.not_taken, message, error.args[0])
            except BufferError as error:
                full = _Error(_Error._QUEUE_FULL, str(error))
                self._loop.call_soon(batch.not_taken, message, full)
        return waiting

    # -- in the polling thread -----------------------------------------------------------------

    def _done(self, batch: _Batch) -> None:
        if not batch.failed:
            self._trouble = ""
        if batch.bad_company:  # the next life finds out which ones it was
            self._singly = True
        if batch.untimely and self._dated:
            self._dated = False
            _log.warning(
                "Kafka refuses the time of an event as a record's timestamp (see the topics'"
                " message.timestamp.before.max.ms): records get the time of their publishing; the"
                " event's is in ce_time"
            )
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits
            self._loop.call_soon_threadsafe(self._answer, batch)

    def _failed(self, error: Any) -> None:
        self._trouble = error.str()
        _log.debug("Kafka: %s", error)

    # -- on the loop ---------------------------------------------------------------------------

    def _answer(self, batch: _Batch) -> None:
        waiting = self._waiting.pop(batch, None)
        if waiting is None or waiting.done():
            return
        if batch.failed:
            waiting.set_exception(PublishFailed(batch.failed))
        else:
            waiting.set_result(batch.refused)


def _poll(producer: Any, ended: threading.Event) -> None:
    while not ended.is_set():
        producer.poll(_POLL)


def check(settings: KafkaSettings, timeout: float) -> str:
    """Ask the brokers for their topics, and change nothing. Raises KafkaException."""
    found = AdminClient(settings.client()).list_topics(timeout=timeout)
    missing = [topic for topic in (*settings.topics, *settings.hints) if topic not in found.topics]
    brokers = f"{len(found.brokers)} broker{'' if len(found.brokers) == 1 else 's'}"
    return f"{brokers}; {', '.join(missing)} would be created" if missing else brokers


def make_topics(settings: KafkaSettings) -> tuple[int, list[str]]:
    """Make the topics that are not there, and look at those that are.

    Raises KafkaException, and TimeoutError if Kafka goes away meanwhile.

    Returns the size of the largest message that all of them take, as far as it is known; and the
    topics of the record that were there.
    """
    admin = AdminClient(settings.client())
    there = admin.list_topics(timeout=_ADMIN_TIMEOUT).topics
    kept = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "max.message.bytes": str(settings.max_message_bytes),
    }
    wanted = dict.fromkeys(settings.topics, (settings.partitions, kept))
    for topic, partitions in settings.hints.items():
        wanted[topic] = (partitions, _HINTS_KEPT)
    new = [
        NewTopic(topic, partitions, settings.replication, config=config)
        for topic, (partitions, config) in wanted.items()
        if topic not in there
    ]
    if new:
        for made in admin.create_topics(new, request_timeout=_ADMIN_TIMEOUT).values():
            try:
                made.result(_ADMIN_TIMEOUT)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() != _Error.TOPIC_ALREADY_EXISTS:
                    raise
    for topic, partitions in settings.hints.items():
        if topic in there and len(there[topic].partitions) < partitions:
            _widen(admin, topic, partitions)
    used = [topic for topic in settings.topics if topic in there]
    limits = [_look_at(admin, topic, kept) for topic in used]
    return min([settings.max_message_bytes, *limits]), used


def _widen(admin: Any, topic: str, partitions: int) -> None:
    """A worker is allotted a partition by number: it has to be there. No hint's place matters."""
    more = NewPartitions(topic, partitions)
    for made in admin.create_partitions([more], request_timeout=_ADMIN_TIMEOUT).values():
        made.result(_ADMIN_TIMEOUT)
    _log.info("topic %s has %d partitions now", topic, partitions)


def _look_at(admin: Any, topic: str, wanted: Mapping[str, str]) -> int:
    """Somebody else made it, or it was changed: say what that means, and leave it.

    Returns how large a message may be.
    """
    limit = int(wanted["max.message.bytes"])
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        (answer,) = admin.describe_configs([resource], request_timeout=_ADMIN_TIMEOUT).values()
        found = answer.result(_ADMIN_TIMEOUT)
    except confluent_kafka.KafkaException as error:
        _log.warning("the settings of topic %s cannot be read: %s", topic, said(error))
        return limit
    for name, value in wanted.items():
        there = found[name].value if name in found else value
        if name == "max.message.bytes":
            limit = int(there)
            if limit >= int(value):
                continue
        if there != value:
            _log.warning(
                "topic %s has %s=%s, not %s: records may be lost or refused",
                topic,
                name,
                there,
                value,
            )
    return limit
