"""Create the publisher and the readers of the event stream from the settings."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from jobqueue.access.tls import check_roots
from jobqueue.config import Settings
from jobqueue.connect.extras import needed_by
from jobqueue.connect.urls import parse_url
from jobqueue.core.address import MAX_PORT
from jobqueue.core.dispatch import HintSource
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.core.store import Store
from jobqueue.core.stream import StreamRunner
from jobqueue.engine import admission
from jobqueue.events.abandon import Abandon
from jobqueue.events.relay import Relay
from jobqueue.events.topics import MESSAGE_MARGIN, DispatchTopics, Topics
from jobqueue.redaction import redact_value
from jobqueue.server.security import password
from jobqueue.worker.settings import MAX_RESULT_BYTES

if TYPE_CHECKING:
    from jobqueue.events.dispatch.worker import KafkaDispatch
    from jobqueue.events.record import Record, Tail
    from jobqueue.events.settings import KafkaSettings

_FIELD = "kafka.bootstrap"
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+)(?::(\d{1,5}))?")


def topics(settings: Settings) -> Topics:
    chosen = settings.kafka
    return Topics(
        chosen.topic_jobs,
        chosen.topic_dead_letters,
        chosen.topic_queues,
        _dispatch_topics(settings) if chosen.dispatch else None,
    )


def _dispatch_topics(settings: Settings) -> DispatchTopics:
    chosen = settings.kafka
    return DispatchTopics(
        requests=chosen.topic_requests,
        assignments=chosen.topic_assignments,
        results=chosen.topic_results,
        workers=chosen.topic_workers,
        assignment_partitions=chosen.assignment_partitions,
    )


def partitions(settings: Settings) -> int:
    """Return the number of partitions of the topic through which workers learn of their jobs.

    Return 0 if kafka.dispatch is not set.
    """
    return settings.kafka.assignment_partitions if settings.kafka.dispatch else 0


def check_dispatch(settings: Settings, url: str, field: str) -> None:
    """Raise InvalidArgument if the settings of dispatch through Kafka do not fit together.

    Server roles other than ``all`` need dispatch through Kafka. ``url`` is the store's URL, and
    ``field`` the setting that has the URL.
    """
    chosen = settings.kafka
    if not chosen.dispatch:
        if settings.server.role != "all":
            raise InvalidArgument(
                "server.role",
                f"{settings.server.role!r} needs kafka.dispatch; set kafka.dispatch, or the role"
                " all",
            )
        return
    if parse_url(url, field).scheme != "redis":
        raise InvalidArgument(
            "kafka.dispatch",
            f"needs a store in Redis: {field} must be redis://… or rediss://…, not"
            f" {redact_value(url)!r}",
        )
    if not chosen.bootstrap:
        raise InvalidArgument(
            "kafka.dispatch", "needs Kafka: set kafka.bootstrap to HOST:PORT of its brokers"
        )
    hints = ("requests", "assignments", "results", "workers")
    names = [*topics(settings).all, *(getattr(chosen, f"topic_{name}") for name in hints)]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(
                "kafka.dispatch", f"two topics have the name {name!r}; give each its own name"
            )


def kafka(settings: Settings) -> KafkaSettings:
    """Create the settings of Kafka's clients.

    Raises InvalidArgument if a setting is not valid, or if Kafka's library is not installed.
    """
    with needed_by(_FIELD, "confluent_kafka"):
        from jobqueue.events.settings import KafkaSettings
    chosen = settings.kafka
    _check_addresses(chosen.bootstrap)
    security: dict[str, str] = {"security.protocol": chosen.security}
    if chosen.security.startswith("sasl"):
        given = {"username": chosen.username, "password": password(chosen, "kafka")}
        for name, value in given.items():
            if not value:
                raise InvalidArgument(
                    f"kafka.{name}", f"is needed with kafka.security {chosen.security}; set it"
                )
        security |= {
            "sasl.mechanism": chosen.sasl_mechanism.upper(),
            "sasl.username": chosen.username,
            "sasl.password": given["password"],
        }
    if chosen.tls_ca:
        check_roots(chosen.tls_ca, "kafka.tls_ca")
        security["ssl.ca.location"] = chosen.tls_ca
    told = topics(settings)
    # An event carries the payload or the result; its other fields fit into the margin.
    largest = max(settings.queue.max_payload_bytes, MAX_RESULT_BYTES)
    return KafkaSettings(
        bootstrap=chosen.bootstrap,
        topics=told.all,
        hints={} if told.dispatch is None else told.dispatch.all,
        max_message_bytes=largest + MESSAGE_MARGIN,
        partitions=chosen.partitions,
        replication=chosen.replication or -1,
        security=security,
    )


def _check_addresses(bootstrap: str) -> None:
    for one in bootstrap.split(","):
        found = _ADDRESS.fullmatch(one.strip())
        if found is None or (found[1] and not 0 < int(found[1]) <= MAX_PORT):
            # The value may contain a user and password with a comma: then all of it is masked.
            shown = redact_value(bootstrap if "@" in bootstrap else one.strip())
            raise InvalidArgument(
                _FIELD, f"{shown!r} is not HOST:PORT; allowed: HOST:PORT[,HOST:PORT…]"
            )


def runner(settings: Settings, observer: Observer) -> StreamRunner | None:
    """Create the publisher of the event stream, or with kafka.abandon the part that turns it off.

    Return None if neither kafka.bootstrap nor kafka.abandon is set.
    """
    if not settings.kafka.bootstrap:
        return Abandon() if settings.kafka.abandon else None
    if settings.kafka.abandon:
        raise InvalidArgument(
            "kafka.abandon", "cannot be set together with kafka.bootstrap; remove one of the two"
        )
    told = kafka(settings)
    from jobqueue.events.kafka import KafkaPublisher

    for topic in (*told.topics, *told.hints):
        observer.publish_failed(topic, 0)  # the counter is shown before its first error
    return Relay(KafkaPublisher(told), topics(settings), observer)


def scheduler_hints(settings: Settings) -> HintSource:
    """Create the reader of the hints that wake the scheduler."""
    told = kafka(settings)
    from jobqueue.events.dispatch.reader import HintReader

    chosen = _dispatch_topics(settings)
    return HintReader(told, dict.fromkeys((chosen.requests, chosen.results, chosen.workers)))


def worker_dispatch(settings: Settings, store: Store, observer: Observer) -> KafkaDispatch:
    """Create the API that gives a worker its jobs if kafka.dispatch is set."""
    told = kafka(settings)
    from jobqueue.events.dispatch.reader import HintReader
    from jobqueue.events.dispatch.worker import KafkaDispatch

    topic = settings.kafka.topic_assignments

    def listen(partition: int, placed: Callable[[], None]) -> HintSource:
        return HintReader(told, {topic: partition}, placed=placed)

    return KafkaDispatch(store, listen, observer, admission.check_worker)


def tail(settings: Settings, *, beginning: bool, schedules: bool = False) -> Tail:
    """Create a reader that follows the topic of job events, or that of queues and schedules.

    With ``beginning``, the reader starts at the oldest record, otherwise at new records.
    """
    told, chosen = kafka(settings), settings.kafka
    from jobqueue.events.record import Tail

    topic = chosen.topic_queues if schedules else chosen.topic_jobs
    return Tail(told, topic, beginning=beginning)


def record(settings: Settings) -> Record:
    """Create a reader of all records of jobs and queues, from which a store is rebuilt."""
    told = kafka(settings)
    from jobqueue.events.record import Record

    named = topics(settings)
    # The topic of queues is read last: a queue is created before its jobs, so the queue of each job
    # that was read is in the record.
    return Record(told, list(dict.fromkeys((named.jobs, named.queues))))


async def check(settings: Settings, timeout: float) -> str:
    """Check that Kafka answers, without changing anything; describe its brokers and topics.

    Raises Unavailable if Kafka cannot be reached.
    """
    told = kafka(settings)
    import confluent_kafka

    from jobqueue.events.kafka import check as look
    from jobqueue.events.settings import said

    try:
        return await asyncio.to_thread(look, told, timeout)
    except confluent_kafka.KafkaException as error:
        raise Unavailable(f"{told.bootstrap}: {said(error)}") from error
