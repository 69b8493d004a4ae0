"""The event stream by the settings: who publishes to Kafka, and who reads from it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from jobqueue.access.tls import check_roots
from jobqueue.config import Settings
from jobqueue.core.dispatch import DispatchStore, HintSource
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.job import WorkerInfo
from jobqueue.core.observer import Observer
from jobqueue.core.store import Store
from jobqueue.core.stream import StreamRunner
from jobqueue.events.abandon import Abandon
from jobqueue.events.dispatch.topics import DispatchTopics
from jobqueue.events.relay import Relay
from jobqueue.events.topics import MESSAGE_MARGIN, Topics
from jobqueue.redaction import redact_value
from jobqueue.topology.connect import parse_url
from jobqueue.topology.extras import not_installed
from jobqueue.topology.security import password
from jobqueue.worker.settings import MAX_RESULT_BYTES

if TYPE_CHECKING:
    from jobqueue.events.dispatch.worker import KafkaDispatch
    from jobqueue.events.record import Record
    from jobqueue.events.settings import KafkaSettings
    from jobqueue.events.tail import Tail

_FIELD = "kafka.bootstrap"
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+)(?::(\d{1,5}))?")
_MAX_PORT = 65535


def topics(settings: Settings) -> Topics:
    """Which topics carry what."""
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
    """So many are there for workers; 0: they do not hear of their jobs by Kafka."""
    return settings.kafka.assignment_partitions if settings.kafka.dispatch else 0


def check_dispatch(settings: Settings, url: str, field: str) -> None:
    """Refuse a dispatch by Kafka that lacks something, and roles that need one."""
    chosen = settings.kafka
    if not chosen.dispatch:
        if settings.server.role != "all":
            raise InvalidArgument(
                "server.role", f"{settings.server.role!r} needs kafka.dispatch; without it: all"
            )
        return
    if parse_url(url, field).scheme != "redis":
        raise InvalidArgument(
            "kafka.dispatch",
            f"needs a store in Redis: {field} must be redis://… or rediss://…, not"
            f" {redact_value(url)!r}",
        )
    if not chosen.bootstrap:
        raise InvalidArgument("kafka.dispatch", "needs Kafka: name it in kafka.bootstrap")
    names = list(topics(settings).all)
    names += [
        chosen.topic_requests,
        chosen.topic_assignments,
        chosen.topic_results,
        chosen.topic_workers,
    ]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument("kafka.dispatch", f"two topics have the name {name!r}")


def kafka(settings: Settings) -> KafkaSettings:
    """What clients of Kafka are told. InvalidArgument: its library is not installed."""
    try:
        from jobqueue.events.settings import KafkaSettings
    except ModuleNotFoundError as error:
        raise not_installed(error, _FIELD, "confluent_kafka") from None
    chosen = settings.kafka
    _check_addresses(chosen.bootstrap)
    security: dict[str, str] = {"security.protocol": chosen.security}
    if chosen.security.startswith("sasl"):
        given = {"username": chosen.username, "password": password(chosen, "kafka")}
        for name, value in given.items():
            if not value:
                raise InvalidArgument(f"kafka.{name}", f"is needed with {chosen.security}")
        security |= {
            "sasl.mechanism": chosen.sasl_mechanism.upper(),
            "sasl.username": chosen.username,
            "sasl.password": given["password"],
        }
    if chosen.tls_ca:
        check_roots(chosen.tls_ca, "kafka.tls_ca")
        security["ssl.ca.location"] = chosen.tls_ca
    told = topics(settings)
    # An event carries the payload or the result, whatever else it says fits into the margin.
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
        if found is None or (found[1] and not 0 < int(found[1]) <= _MAX_PORT):
            # A login does not belong here; where there is one, a comma may be a part of it.
            shown = redact_value(bootstrap if "@" in bootstrap else one.strip())
            raise InvalidArgument(
                _FIELD, f"{shown!r} is not HOST:PORT; allowed: several of them with commas"
            )


def runner(settings: Settings, observer: Observer) -> StreamRunner | None:
    """Who publishes the stream, or gives it up; None: there is none."""
    if not settings.kafka.bootstrap:
        return Abandon() if settings.kafka.abandon else None
    if settings.kafka.abandon:
        raise InvalidArgument(
            "kafka.abandon", "cannot be set where kafka.bootstrap names a Kafka to publish to"
        )
    told = kafka(settings)
    from jobqueue.events.kafka import KafkaPublisher

    for topic in (*told.topics, *told.hints):
        observer.publish_failed(topic, 0)  # a counter that is there before its first error
    return Relay(KafkaPublisher(told), topics(settings), observer)


def scheduler_hints(settings: Settings) -> HintSource:
    """What wakes a scheduler."""
    told = kafka(settings)
    from jobqueue.events.dispatch.reader import HintReader

    chosen = _dispatch_topics(settings)
    return HintReader(told, dict.fromkeys((chosen.requests, chosen.results, chosen.workers)))


def worker_dispatch(
    settings: Settings,
    store: Store,
    observer: Observer,
    check: Callable[[WorkerInfo], None],
) -> KafkaDispatch:
    """How a worker hears of its jobs."""
    told = kafka(settings)
    from jobqueue.events.dispatch.reader import HintReader
    from jobqueue.events.dispatch.worker import KafkaDispatch

    topic = settings.kafka.topic_assignments

    def listen(partition: int, placed: Callable[[], None]) -> HintSource:
        return HintReader(told, {topic: partition}, placed=placed)

    return KafkaDispatch(cast(DispatchStore, store), listen, observer, check)


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
    from jobqueue.events.settings import said

    try:
        return await asyncio.to_thread(look, told, timeout)
    except confluent_kafka.KafkaException as error:
        raise Unavailable(f"{told.bootstrap}: {said(error)}") from error
