"""The event stream by the settings: who publishes to Kafka, and who reads from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from jobqueue.config import Settings
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.core.stream import StreamRunner
from jobqueue.events.abandon import Abandon
from jobqueue.events.relay import Relay
from jobqueue.events.topics import MESSAGE_MARGIN, Topics
from jobqueue.topology.connect import is_redis, not_installed
from jobqueue.worker.settings import MAX_RESULT_BYTES

if TYPE_CHECKING:
    from jobqueue.events.kafka import KafkaSettings
    from jobqueue.events.record import Record
    from jobqueue.events.tail import Tail

_FIELD = "kafka.bootstrap"


def topics(settings: Settings) -> Topics:
    """Which topics carry what."""
    chosen = settings.kafka
    workers = chosen.topic_workers if is_redis(settings.db.url) else None  # others do not tell
    return Topics(chosen.topic_jobs, chosen.topic_dead_letters, chosen.topic_queues, workers)


def kafka(settings: Settings) -> KafkaSettings:
    """What clients of Kafka are told. InvalidArgument: its library is not installed."""
    try:
        from jobqueue.events.kafka import KafkaSettings
    except ModuleNotFoundError as error:
        raise not_installed(error, _FIELD, "confluent_kafka") from error
    chosen = settings.kafka
    security: dict[str, str] = {"security.protocol": chosen.security}
    if chosen.security.startswith("sasl"):
        if not chosen.username:
            raise InvalidArgument("kafka.username", f"is needed with {chosen.security}")
        security |= {
            "sasl.mechanism": chosen.sasl_mechanism.upper(),
            "sasl.username": chosen.username,
            "sasl.password": chosen.password.get_secret_value(),
        }
    if chosen.tls_ca:
        security["ssl.ca.location"] = chosen.tls_ca
    # An event carries the payload or the result, whatever else it says fits into the margin.
    largest = max(settings.queue.max_payload_bytes, MAX_RESULT_BYTES)
    return KafkaSettings(
        bootstrap=chosen.bootstrap,
        topics=topics(settings).all,
        max_message_bytes=largest + MESSAGE_MARGIN,
        partitions=chosen.partitions,
        replication=chosen.replication or -1,
        security=security,
    )


def runner(settings: Settings, observer: Observer) -> StreamRunner | None:
    """Who publishes the stream, or gives it up; None: there is none."""
    if not settings.kafka.bootstrap:
        return Abandon() if settings.kafka.abandon else None
    told = kafka(settings)
    from jobqueue.events.kafka import KafkaPublisher

    return Relay(KafkaPublisher(told), topics(settings), observer)


def tail(settings: Settings, *, beginning: bool) -> Tail:
    """Who reads the stream of jobs as it comes."""
    told = kafka(settings)
    from jobqueue.events.tail import Tail

    return Tail(told, settings.kafka.topic_jobs, beginning=beginning)


def record(settings: Settings) -> Record:
    """Who reads all that there is of jobs and queues, to rebuild them."""
    told = kafka(settings)
    from jobqueue.events.record import Record

    named = topics(settings)
    # Queues last: each is there before its jobs.
    return Record(told, list(dict.fromkeys((named.jobs, named.queues))))


async def check(settings: Settings, timeout: float) -> str:
    """Ask Kafka what is there, and change nothing."""
    told = kafka(settings)
    import confluent_kafka

    from jobqueue.events.kafka import check as look
    from jobqueue.events.kafka import said

    try:
        return await asyncio.to_thread(look, told, timeout)
    except confluent_kafka.KafkaException as error:
        raise Unavailable(f"{told.bootstrap}: {said(error)}") from error
