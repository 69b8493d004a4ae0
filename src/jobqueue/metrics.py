"""Prometheus metrics: the names of jq:FR-040, each registry its own, nothing global.

``Metrics`` is an observer. It hears of batches, from any thread, so it keeps plain numbers under
one lock and turns them into Prometheus families only when somebody scrapes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from jobqueue.core.errors import JobQueueError
from jobqueue.core.job import Worker, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueStats
from jobqueue.core.store import Lag

log = logging.getLogger("jobqueue.metrics")

_FAST = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
)
_SLOW = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_SCRAPE_TIMEOUT = 5.0

Labels = tuple[str, ...]


class Figures(Protocol):
    """What a scrape reads from a backend."""

    async def list_queues(self) -> list[QueueStats]:
        """Figures of all queues."""
        ...

    async def list_workers(self) -> list[Worker]:
        """Every worker known."""
        ...


class _Histogram:
    """Counts by bucket, for each set of labels. The caller holds the lock."""

    def __init__(self, name: str, about: str, labels: Labels, bounds: Sequence[float]) -> None:
        self._name, self._about, self._labels, self._bounds = name, about, labels, bounds
        self._series: dict[Labels, list[float]] = {}  # a count for each bucket, then the sum

    def observe(self, labels: Labels, values: Sequence[float]) -> None:
        bounds = self._bounds
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0.0] * (len(bounds) + 2)
        for value in values:
            series[bisect_left(bounds, value)] += 1
        series[-1] += sum(values)

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        for labels, series in self._series.items():
            total = 0.0
            buckets = []
            for bound, count in zip((*self._bounds, float("inf")), series[:-1], strict=True):
                total += count
                buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), total))
            family.add_metric(labels, buckets, series[-1])
        return family


class _Counter:
    """A count for each set of labels. The caller holds the lock."""

    def __init__(self, name: str, about: str, labels: Labels) -> None:
        self._name, self._about, self._labels = name, about, labels
        self._series: defaultdict[Labels, float] = defaultdict(float)

    def add(self, labels: Labels, amount: float) -> None:
        self._series[labels] += amount

    def family(self) -> Metric:
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, value in self._series.items():
            family.add_metric(labels, value)
        return family


class Metrics(Collector):
    """Listens, counts, and renders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run = _Histogram(
            "jq_job_processing_duration_seconds", "Run time of attempts.", ("queue",), _SLOW
        )
        self._grpc = _Histogram(
            "jq_grpc_request_duration_seconds",
            "Time to answer gRPC calls.",
            ("method", "status_code"),
            _FAST,
        )
        self._cycle = _Histogram(
            "jq_scheduler_cycle_duration_seconds", "Time of scheduling cycles.", (), _FAST
        )
        self._query = _Histogram(
            "jq_db_query_duration_seconds", "Time of store statements.", ("query_name",), _FAST
        )
        self._redis = _Histogram(
            "jq_redis_operation_duration_seconds", "Time of Redis calls.", ("operation",), _FAST
        )
        self._cycle.observe((), ())  # without labels it is there from the start
        self._jobs = _Counter("jq_job", "Jobs that entered a state.", ("queue", "status"))
        self._assigned = _Counter("jq_scheduler_jobs_assigned", "Jobs handed out.", ("queue",))
        self._logins = _Counter("jq_auth_failures", "Credentials that were refused.", ("face",))
        self._kafka = _Counter("jq_kafka_publish_errors", "Events Kafka did not take.", ("topic",))
        self._published = _Counter("jq_kafka_published", "Records that Kafka took.", ("topic",))
        self._dropped = _Counter(
            "jq_kafka_hints_dropped", "Assignments heard of twice or too late, and dropped.", ()
        )
        self._dropped.add((), 0)  # without labels it is there from the start
        self._leads: int | None = None  # 0, or the epoch; None: this process does not stand for it
        self._foreign = False
        self._lag: Lag | None = None  # None: another server publishes, or nobody
        self._redis_errors = _Counter(
            "jq_redis_errors", "Redis calls without a useful answer.", ("error",)
        )
        self._redis_up: bool | None = None  # None: there is no Redis here
        self._queues: list[QueueStats] = []
        self._workers: list[Worker] = []
        self._overruns: dict[str, Callable[[], int]] = {}
        self._own: tuple[str, int] | None = None
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    # -- the observer ----------------------------------------------------------------------

    def entered(self, queue: str, state: State, count: int) -> None:
        """Jobs of a queue entered a state."""
        with self._lock:
            self._jobs.add((queue, state.name), count)
            if state is State.ASSIGNED:
                self._assigned.add((queue,), count)

    def ran(self, queue: str, seconds: Sequence[float]) -> None:
        """Attempts ended after running that long."""
        with self._lock:
            self._run.observe((queue,), seconds)

    def scheduled(self, seconds: float, assigned: dict[str, int]) -> None:
        """A scheduling cycle ended.

        Jobs are counted as they enter ASSIGNED: most of them do so in a submit or a report, not
        in a cycle.
        """
        with self._lock:
            self._cycle.observe((), (seconds,))

    def queried(self, name: str, seconds: float) -> None:
        """A statement of the store ended."""
        with self._lock:
            self._query.observe((name,), (seconds,))

    def locked(self, operation: str, seconds: float) -> None:
        """Redis answered a call."""
        with self._lock:
            self._redis.observe((operation,), (seconds,))

    def lock_failed(self, error: str) -> None:
        """A call to Redis failed."""
        with self._lock:
            self._redis_errors.add((error,), 1)

    def locks_up(self, up: bool) -> None:
        """Redis went away or came back."""
        self._redis_up = up

    def published(self, topic: str, count: int) -> None:
        """Kafka took records."""
        with self._lock:
            self._published.add((topic,), count)

    def publish_failed(self, topic: str, count: int) -> None:
        """Kafka refused records, or does not answer."""
        with self._lock:
            self._kafka.add((topic,), count)

    def stream_lag(self, lag: Lag | None) -> None:
        """How far the event stream is behind."""
        self._lag = lag

    def stream_refused(self, refused: bool) -> None:
        """Whether the topics hold another store's records."""
        self._foreign = refused

    def hints_dropped(self, count: int) -> None:
        """Hints came twice, or too late."""
        with self._lock:
            self._dropped.add((), count)

    def leading(self, epoch: int | None) -> None:
        """This process took the lead, or lost it."""
        self._leads = epoch or 0

    # -- the faces -------------------------------------------------------------------------

    def on_call(self, method: str, status_code: str, seconds: float) -> None:
        """A gRPC call was answered."""
        with self._lock:
            self._grpc.observe((method, status_code), (seconds,))

    def login_failed(self, face: str) -> None:
        """A face was shown a credential that nobody has, or none."""
        with self._lock:
            self._logins.add((face,), 1)

    def set_worker(self, worker_id: str, running: int) -> None:
        """This process is that one worker, and shows itself only."""
        self._own = (worker_id, running)

    def watch_overruns(self, worker_id: str, count: Callable[[], int]) -> None:
        """A worker of this process: it is asked at every scrape."""
        self._overruns[worker_id] = count

    def collect(self) -> Iterator[Metric]:
        """The families, for the registry."""
        yield from self._gauges()
        with self._lock:
            families = [
                self._run.family(),
                self._jobs.family(),
                self._grpc.family(),
                self._cycle.family(),
                self._assigned.family(),
                self._logins.family(),
                self._kafka.family(),
                self._published.family(),
                self._dropped.family(),
                self._query.family(),
                self._redis.family(),
                self._redis_errors.family(),
            ]
        yield from families

    def _gauges(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily(
            "jq_job_queue_depth", "Jobs by queue and state.", labels=("queue", "status")
        )
        for stats in self._queues:
            for state in State:
                depth.add_metric((stats.queue.name, state.name), stats.depth.get(state, 0))
        yield depth
        without = GaugeMetricFamily(
            "jq_jobs_without_worker",
            "Jobs that wait because no connected worker takes their type.",
            labels=("queue",),
        )
        for stats in self._queues:
            without.add_metric((stats.queue.name,), sum(one.jobs for one in stats.unserved))
        yield without
        active = [w for w in self._workers if w.status is not WorkerStatus.OFFLINE]
        running = {worker.info.id: worker.running for worker in active}
        if self._own is not None:
            running = dict([self._own])
        yield GaugeMetricFamily(
            "jq_worker_active_count", "Workers that are not OFFLINE.", value=len(running)
        )
        held = GaugeMetricFamily(
            "jq_worker_job_concurrency", "Jobs a worker holds now.", labels=("worker_id",)
        )
        for worker_id, count in running.items():
            held.add_metric((worker_id,), count)
        yield held
        overrun = GaugeMetricFamily(
            "jq_worker_overrun_slots",
            "Slots of this process's worker whose attempt is over and whose function still runs.",
            labels=("worker_id",),
        )
        for worker_id, ask in self._overruns.items():
            overrun.add_metric((worker_id,), ask())
        yield overrun
        yield from self._leadership()
        redis = GaugeMetricFamily("jq_redis_up", "Whether Redis answers.", labels=())
        if self._redis_up is not None:
            redis.add_metric((), float(self._redis_up))
        yield redis
        behind = GaugeMetricFamily("jq_kafka_lag_events", "Events not yet published.", labels=())
        age = GaugeMetricFamily(
            "jq_kafka_lag_seconds", "Age of the oldest event not yet published.", labels=()
        )
        refused = GaugeMetricFamily(
            "jq_kafka_records_missing", "Records that Kafka refused for good.", labels=()
        )
        foreign = GaugeMetricFamily(
            "jq_kafka_foreign_topics",
            "Whether nothing is published because the topics hold another store's records.",
            labels=(),
        )
        if (lag := self._lag) is not None:
            behind.add_metric((), lag.events)
            age.add_metric((), lag.seconds)
            refused.add_metric((), lag.refused)
            foreign.add_metric((), float(self._foreign))
        yield from (behind, age, refused, foreign)

    def _leadership(self) -> Iterator[Metric]:
        leads = GaugeMetricFamily("jq_leader", "Whether this process leads.", labels=())
        epoch = GaugeMetricFamily(
            "jq_leader_epoch", "The term that this process leads under.", labels=()
        )
        if self._leads is not None:
            leads.add_metric((), float(self._leads > 0))
        if self._leads:
            epoch.add_metric((), self._leads)
        yield from (leads, epoch)

    async def render(self, backend: Figures | None = None) -> tuple[bytes, str]:
        """The exposition text and its content type.

        When the backend cannot be read, what this process counted itself is still shown.
        """
        queues: list[QueueStats] = []
        workers: list[Worker] = []
        if backend is not None:
            try:
                async with asyncio.timeout(_SCRAPE_TIMEOUT):
                    queues = await backend.list_queues()
                    workers = await backend.list_workers()
            except (JobQueueError, TimeoutError) as error:
                log.warning("the scrape could not read the store: %s", str(error) or "timed out")
        # No await from here on: two scrapes at once do not mix.
        self._queues, self._workers = queues, workers
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
