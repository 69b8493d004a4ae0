"""Metrics: every name of jq:FR-040 with its labels, counted in batches, rendered at a scrape."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import Worker, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.metrics import Metrics

NAMES = {
    "jq_job_queue_depth": ("gauge", {"queue", "status"}),
    "jq_job_processing_duration_seconds": ("histogram", {"queue"}),
    "jq_job": ("counter", {"queue", "status"}),
    "jq_worker_active_count": ("gauge", set()),
    "jq_worker_job_concurrency": ("gauge", {"worker_id"}),
    "jq_grpc_request_duration_seconds": ("histogram", {"method", "status_code"}),
    "jq_scheduler_cycle_duration_seconds": ("histogram", set()),
    "jq_scheduler_jobs_assigned": ("counter", {"queue"}),
    "jq_kafka_publish_errors": ("counter", {"topic"}),
    "jq_db_query_duration_seconds": ("histogram", {"query_name"}),
    "jq_redis_operation_duration_seconds": ("histogram", {"operation"}),
    "jq_redis_errors": ("counter", {"error"}),
    "jq_redis_up": ("gauge", set()),
}
NOT_YET = {"jq_kafka_publish_errors"}  # no samples here


def worker(name: str, status: WorkerStatus, running: int) -> Worker:
    info = WorkerInfo(
        id=name, incarnation=1, hostname="h", pid=1, concurrency=4, queues=("default",)
    )
    return Worker(info=info, status=status, registered_at=0, last_seen=0, running=running)


class Backend:
    async def list_queues(self) -> list[QueueStats]:
        return [QueueStats(queue=Queue(name='a"b'), depth={State.PENDING: 3, State.DONE: 2})]

    async def list_workers(self) -> list[Worker]:
        return [
            worker("w1", WorkerStatus.ONLINE, 2),
            worker("w2", WorkerStatus.DRAINING, 1),
            worker("w3", WorkerStatus.OFFLINE, 0),
        ]


async def scrape(metrics: Metrics, backend=None):
    body, content_type = await metrics.render(backend)
    assert content_type.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    return families, samples


@pytest.mark.req("jq:FR-040", "jq:AC-6")
async def test_every_metric_is_there_with_its_type_and_labels():
    metrics = Metrics()
    metrics.entered("a", State.ASSIGNED, 1)
    metrics.ran("a", [0.1])
    metrics.scheduled(0.001, {"a": 1})
    metrics.queried("claim", 0.001)
    metrics.locked("take", 0.001)
    metrics.lock_failed("timeout")
    metrics.locks_up(True)
    metrics.on_call("/jq.v1.ClientService/Submit", "OK", 0.01)
    families, _ = await scrape(metrics, Backend())
    for name, (kind, labels) in NAMES.items():
        assert families[name].type == kind, name
        samples = families[name].samples
        assert bool(samples) is (name not in NOT_YET), name
        for sample in samples:
            assert set(sample.labels) - {"le"} == labels, name


async def test_redis_is_shown_where_there_is_one():
    metrics = Metrics()
    _, samples = await scrape(metrics)
    assert ("jq_redis_up",) not in samples  # no alert where none is used
    metrics.locks_up(False)
    metrics.lock_failed("timeout")
    metrics.lock_failed("timeout")
    _, samples = await scrape(metrics)
    assert samples["jq_redis_up",] == 0
    assert samples["jq_redis_errors_total", ("error", "timeout")] == 2
    metrics.locks_up(True)
    _, samples = await scrape(metrics)
    assert samples["jq_redis_up",] == 1


async def test_gauges_are_the_figures_of_the_moment():
    _, samples = await scrape(Metrics(), Backend())
    assert samples["jq_job_queue_depth", ("queue", 'a"b'), ("status", "PENDING")] == 3
    assert samples["jq_job_queue_depth", ("queue", 'a"b'), ("status", "RUNNING")] == 0
    assert samples["jq_worker_active_count",] == 2
    assert samples["jq_worker_job_concurrency", ("worker_id", "w1")] == 2
    assert ("jq_worker_job_concurrency", ("worker_id", "w3")) not in samples


async def test_counters_and_histograms_add_up():
    metrics = Metrics()
    metrics.entered("a", State.DONE, 3)
    metrics.entered("a", State.DONE, 4)
    metrics.entered("a", State.FAILED, 1)
    metrics.entered("b", State.ASSIGNED, 2)
    metrics.scheduled(0.3, {"b": 2})
    metrics.ran("a", [0.0005, 0.2, 7.0, 1e9])
    _, samples = await scrape(metrics)
    assert samples["jq_job_total", ("queue", "a"), ("status", "DONE")] == 7
    assert samples["jq_job_total", ("queue", "a"), ("status", "FAILED")] == 1
    assert samples["jq_scheduler_jobs_assigned_total", ("queue", "b")] == 2
    assert samples["jq_scheduler_cycle_duration_seconds_count",] == 1
    name = "jq_job_processing_duration_seconds"
    assert samples[f"{name}_count", ("queue", "a")] == 4
    assert samples[f"{name}_sum", ("queue", "a")] == pytest.approx(1e9 + 7.2005)
    assert samples[f"{name}_bucket", ("le", "0.25"), ("queue", "a")] == 2
    assert samples[f"{name}_bucket", ("le", "3600.0"), ("queue", "a")] == 3
    assert samples[f"{name}_bucket", ("le", "+Inf"), ("queue", "a")] == 4


async def test_a_value_on_a_bound_belongs_to_its_bucket():
    metrics = Metrics()
    metrics.ran("a", [0.25])
    _, samples = await scrape(metrics)
    name = "jq_job_processing_duration_seconds_bucket"
    assert samples[name, ("le", "0.1"), ("queue", "a")] == 0
    assert samples[name, ("le", "0.25"), ("queue", "a")] == 1


async def test_a_store_that_is_down_does_not_hide_the_counters(caplog):
    class Down(Backend):
        async def list_queues(self) -> list[QueueStats]:
            raise Unavailable("disk is gone")

    metrics = Metrics()
    await scrape(metrics, Backend())
    metrics.entered("a", State.DONE, 3)
    _, samples = await scrape(metrics, Down())
    assert samples["jq_job_total", ("queue", "a"), ("status", "DONE")] == 3
    assert not any(name[0] == "jq_job_queue_depth" for name in samples)
    assert "disk is gone" in caplog.text


async def test_threads_may_count_at_the_same_time():
    metrics = Metrics()

    def count() -> None:
        for _ in range(1_000):
            metrics.entered("a", State.DONE, 1)
            metrics.ran("a", [0.1])

    await asyncio.gather(*(asyncio.to_thread(count) for _ in range(4)))
    _, samples = await scrape(metrics)
    assert samples["jq_job_total", ("queue", "a"), ("status", "DONE")] == 4_000
    assert samples["jq_job_processing_duration_seconds_count", ("queue", "a")] == 4_000


async def test_two_registries_share_nothing():
    first, second = Metrics(), Metrics()
    first.entered("a", State.DONE, 1)
    _, samples = await scrape(second)
    assert not any(name[0] == "jq_job_total" for name in samples)
