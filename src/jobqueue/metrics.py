"""Count events of this process, and render the counts as Prometheus metrics.

The names of the metrics are those of jq:FR-040. ``Metrics`` is an observer, which is called once
per batch and from any thread. It keeps plain numbers and converts them to Prometheus families only
at a scrape. Each ``Metrics`` has its own registry.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.queue import QueueStats
from jobqueue.core.store import Lag

log = logging.getLogger("jobqueue.metrics")

_FAST = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
)  # fmt: skip
_SLOW = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_SCRAPE_TIMEOUT = 5.0

Labels = tuple[str, ...]


class ScrapedBackend(Protocol):
    """Declares the calls of a backend that a scrape needs."""

    async def list_queues(self) -> list[QueueStats]:
        """Return the settings and counters of all queues."""
        ...

    async def list_workers(self) -> list[Worker]:
        """Return every worker that the store knows."""
        ...


class _Histogram:
    """Counts values by bucket, for each set of labels. Any thread may use it."""

    def __init__(self, name: str, about: str, labels: Labels, bounds: Sequence[float]) -> None:
        self._name, self._about, self._labels, self._bounds = name, about, labels, bounds
        self._lock = threading.Lock()
        self._series: dict[Labels, list[float]] = {}  # a count for each bucket, then the sum

    def observe(self, labels: Labels, values: Sequence[float]) -> None:
        bounds = self._bounds
        with self._lock:
            series = self._series.get(labels)
            if series is None:
                series = self._series[labels] = [0.0] * (len(bounds) + 2)
            for value in values:
                series[bisect_left(bounds, value)] += 1
            series[-1] += sum(values)

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        with self._lock:
            for labels, series in self._series.items():
                total = 0.0
                buckets = []
                for bound, count in zip((*self._bounds, float("inf")), series[:-1], strict=True):
                    total += count
                    buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
                family.add_metric(labels, buckets, series[-1])
        return family


class _Counter:
    """Counts events for each set of labels. Any thread may use it."""

    def __init__(self, name: str, about: str, labels: Labels) -> None:
        self._name, self._about, self._labels = name, about, labels
        self._lock = threading.Lock()
        self._series: defaultdict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, amount: float) -> None:
        with self._lock:
            self._series[labels] += amount

    def family(self) -> Metric:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        with self._lock:
            for labels, value in self._series.items():
                family.add_metric(labels, value)
        return family


def _gauge(
    name: str, about: str, labels: Labels, samples: Iterable[tuple[Labels, float]]
) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _single(name: str, about: str, value: float | None) -> Metric:
    """Return a gauge without labels; if the value is None, the gauge has no sample."""
    return _gauge(name, about, (), [] if value is None else [((), value)])


class Metrics(Observer, Collector):
    """Counts the events that an observer receives, and renders the counts for Prometheus."""

    def __init__(self) -> None:
        self._run = _Histogram(
            "jq_job_processing_duration_seconds", "Run time of attempts.", ("queue",), _SLOW
        )
        self._jobs = _Counter("jq_job", "Jobs that entered a state.", ("queue", "status"))
        self._grpc = _Histogram(
            "jq_grpc_request_duration_seconds",
            "Time to answer gRPC calls.",
            ("method", "status_code"),
            _FAST,
        )
        self._cycle = _Histogram(
            "jq_scheduler_cycle_duration_seconds", "Time of scheduling cycles.", (), _FAST
        )
        self._assigned = _Counter("jq_scheduler_jobs_assigned", "Jobs handed out.", ("queue",))
        self._logins = _Counter("jq_auth_failures", "Credentials that were refused.", ("face",))
        self._kafka = _Counter("jq_kafka_publish_errors", "Events Kafka did not take.", ("topic",))
        self._published = _Counter("jq_kafka_published", "Records that Kafka took.", ("topic",))
        self._dropped = _Counter(
            "jq_kafka_hints_dropped", "Hints of assignments that came twice or too late.", ()
        )
        self._query = _Histogram(
            "jq_db_query_duration_seconds", "Time of store statements.", ("query_name",), _FAST
        )
        self._redis = _Histogram(
            "jq_redis_operation_duration_seconds", "Time of Redis calls.", ("operation",), _FAST
        )
        self._redis_errors = _Counter(
            "jq_redis_errors", "Redis calls without a useful answer.", ("error",)
        )
        self._counted = (
            self._run, self._jobs, self._grpc, self._cycle, self._assigned, self._logins,
            self._kafka, self._published, self._dropped, self._query, self._redis,
            self._redis_errors,
        )  # fmt: skip
        self._cycle.observe((), ())  # metrics without labels are shown from the start
        self._dropped.add((), 0)
        self._leads: int | None = None  # the epoch; 0: stands by; None: never elects a leader
        self._foreign = False
        self._lag: Lag | None = None  # None: this server does not publish
        self._redis_up: bool | None = None  # None: no Redis is configured
        self._queues: list[QueueStats] = []
        self._workers: list[Worker] = []
        self._overruns: dict[str, Callable[[], int]] = {}
        self._breakers: dict[str, Callable[[], Mapping[str, int]]] = {}
        self._own: tuple[str, int] | None = None
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    # -- the observer ----------------------------------------------------------------------

    def entered(self, queue: str, state: State, count: int) -> None:
        self._jobs.add((queue, state.name), count)
        if state is State.ASSIGNED:
            self._assigned.add((queue,), count)

    def ran(self, queue: str, seconds: Sequence[float]) -> None:
        self._run.observe((queue,), seconds)

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        # ``assigned`` is not counted here: most jobs enter ASSIGNED in a submit or a report.
        self._cycle.observe((), (seconds,))

    def queried(self, name: str, seconds: float) -> None:
        self._query.observe((name,), (seconds,))

    def locked(self, operation: str, seconds: float) -> None:
        self._redis.observe((operation,), (seconds,))

    def lock_failed(self, error: str) -> None:
        self._redis_errors.add((error,), 1)

    def locks_up(self, up: bool) -> None:
        self._redis_up = up

    def published(self, topic: str, count: int) -> None:
        self._published.add((topic,), count)

    def publish_failed(self, topic: str, count: int) -> None:
        self._kafka.add((topic,), count)

    def stream_lag(self, lag: Lag | None) -> None:
        self._lag = lag

    def stream_refused(self, refused: bool) -> None:
        self._foreign = refused

    def hints_dropped(self, count: int) -> None:
        self._dropped.add((), count)

    def leading(self, epoch: int | None) -> None:
        self._leads = epoch or 0

    # -- faces and workers -----------------------------------------------------------------

    def on_call(self, method: str, status_code: str, seconds: float) -> None:
        """Record the status and duration of a gRPC call that was answered."""
        self._grpc.observe((method, status_code), (seconds,))

    def login_failed(self, face: str) -> None:
        """Record that a caller of a face sent no credential, or an unknown credential."""
        self._logins.add((face,), 1)

    def set_worker(self, worker_id: str, running: int) -> None:
        """Set the number of running jobs of the worker in this process, the only one shown."""
        self._own = (worker_id, running)

    def watch_overruns(self, worker_id: str, count: Callable[[], int]) -> None:
        """Register ``count`` of a worker in this process, for each scrape to call.

        ``count`` returns the number of slots in which the function of an ended attempt still runs.
        """
        self._overruns[worker_id] = count

    def watch_breakers(self, worker_id: str, counts: Callable[[], Mapping[str, int]]) -> None:
        """Register ``counts`` of a worker in this process, for each scrape to call.

        ``counts`` returns 1 for each task whose breaker is open, and 0 for the other tasks with a
        breaker.
        """
        self._breakers[worker_id] = counts

    # -- a scrape --------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        for one in self._counted:
            yield one.family()

    def _gauges(self) -> Iterator[Metric]:
        queues = self._queues
        yield _gauge(
            "jq_job_queue_depth",
            "Jobs by queue and state.",
            ("queue", "status"),
            (
                ((s.queue.name, state.name), s.depth.get(state, 0))
                for s in queues
                for state in State
            ),
        )
        yield _gauge(
            "jq_jobs_without_worker",
            "Jobs that wait because no connected worker takes their type.",
            ("queue",),
            (((one.queue.name,), sum(types.jobs for types in one.unserved)) for one in queues),
        )
        active = [w for w in self._workers if w.status is not WorkerStatus.OFFLINE]
        running = {worker.info.id: worker.running for worker in active}
        if self._own is not None:
            running = dict([self._own])
        yield _single("jq_worker_active_count", "Workers that are not OFFLINE.", len(running))
        yield _gauge(
            "jq_worker_job_concurrency",
            "Jobs a worker holds now.",
            ("worker_id",),
            (((worker_id,), count) for worker_id, count in running.items()),
        )
        yield _gauge(
            "jq_worker_overrun_slots",
            "Slots of this process's worker whose attempt is over and whose function still runs.",
            ("worker_id",),
            (((worker_id,), count()) for worker_id, count in self._overruns.items()),
        )
        yield _gauge(
            "jq_worker_breaker_open",
            "1 while this process's worker has paused a task whose attempts failed in a row.",
            ("worker_id", "type"),
            (
                ((worker_id, type), count)
                for worker_id, counts in self._breakers.items()
                for type, count in counts().items()
            ),
        )
        leads, lag = self._leads, self._lag
        yield _single(
            "jq_leader", "1 if this process leads, else 0.", None if leads is None else leads > 0
        )
        yield _single("jq_leader_epoch", "The term that this process leads under.", leads or None)
        yield _single("jq_redis_up", "1 if Redis answers, else 0.", self._redis_up)
        events, seconds, refused, foreign = (
            (None, None, None, None)
            if lag is None
            else (lag.events, lag.seconds, lag.refused, self._foreign)
        )
        yield _single("jq_kafka_lag_events", "Events not yet published.", events)
        yield _single("jq_kafka_lag_seconds", "Age of the oldest event not yet published.", seconds)
        yield _single("jq_kafka_records_missing", "Records that Kafka refused for good.", refused)
        yield _single(
            "jq_kafka_foreign_topics",
            "1 while nothing is published because the topics hold another store's records.",
            foreign,
        )

    async def render(self, backend: ScrapedBackend | None = None) -> tuple[bytes, str]:
        """Return the metrics in Prometheus' text format, and the content type.

        If the backend cannot be read, only the metrics of this process are returned.
        """
        queues: list[QueueStats] = []
        workers: list[Worker] = []
        if backend is not None:
            try:
                async with asyncio.timeout(_SCRAPE_TIMEOUT):
                    queues = await backend.list_queues()
                    workers = await backend.list_workers()
            except (JobQueueError, TimeoutError) as error:
                log.warning(
                    "cannot read queues and workers from the store for /metrics: %s; this scrape"
                    " shows only the metrics of this process",
                    str(error) or f"no answer within {_SCRAPE_TIMEOUT:g} s",
                )
        # No await from here on, so that two concurrent scrapes do not mix their values.
        self._queues, self._workers = queues, workers
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
