"""A real Prometheus scrapes two servers and a worker, and evaluates dashboard and alerts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobqueue.access.tls import Credentials
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import NotFound
from jobqueue.core.job import JobSpec
from tests import patience, ports
from tests.faults.processes import Site
from tests.monitoring.files import EXPRESSIONS, PROMETHEUS, RULES, SCRAPES, SHOWN
from tests.plain_http import plain_http
from tests.services.plugin import OwnPrometheus, OwnRedis
from tests.services.topics import Topics

REQUIRED = {  # by jq:FR-040; of a histogram, the count
    "jq_job_queue_depth": {"queue", "status"},
    "jq_job_processing_duration_seconds_count": {"queue"},
    "jq_job_total": {"queue", "status"},
    "jq_worker_active_count": set(),
    "jq_worker_job_concurrency": {"worker_id"},
    "jq_grpc_request_duration_seconds_count": {"method", "status_code"},
    "jq_scheduler_cycle_duration_seconds_count": set(),
    "jq_scheduler_jobs_assigned_total": {"queue"},
    "jq_kafka_publish_errors_total": {"topic"},
    "jq_db_query_duration_seconds_count": {"query_name"},
    "jq_redis_operation_duration_seconds_count": {"operation"},
}
KEY = "a-key-for-the-test-only"
BEARER = {"Authorization": f"Bearer {KEY}"}
SCRAPE_INTERVAL = "1s"


def scraping(site: Site, metrics_port: int) -> dict[str, str]:
    """Our files, told where this test's programs are and to look more often."""
    told: dict[str, Any] = yaml.safe_load(yaml.safe_dump(SCRAPES))
    told["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), SCRAPE_INTERVAL)
    targets = {
        "jq-server": [f"127.0.0.1:{http}" for http, _ in site.ports],
        "jq-worker": [f"127.0.0.1:{metrics_port}"],
    }
    for scrape in told["scrape_configs"]:
        scrape["static_configs"] = [{"targets": targets[scrape["job_name"]]}]
        scrape["authorization"] = {"credentials": KEY}
    return {
        "prometheus.yaml": yaml.safe_dump(told),
        "alerts.yaml": (PROMETHEUS / "alerts.yaml").read_text(),
    }


class Api:
    """What Grafana asks of a Prometheus."""

    def __init__(self, url: str) -> None:
        self._http = plain_http(url)

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, path: str, **query: str) -> Any:
        answer = (await self._http.get(f"/api/v1/{path}", params=query)).json()
        assert answer["status"] == "success", answer
        assert not answer.get("warnings"), answer
        return answer["data"]

    async def series(self, expression: str) -> list[dict[str, Any]]:
        """The variables are Grafana's; a long range, as scrapes are late on a busy machine."""
        filled = expression.replace("$queue", ".*").replace("$__rate_interval", "5m")
        found: list[dict[str, Any]] = (await self.get("query", query=filled))["result"]
        return found


async def some_of_everything(site: Site, backend: GrpcBackend) -> None:
    """Jobs that end well, badly and not at all; a paused task; failed calls; an unknown key."""
    done = [JobSpec(payload=b'{"number": 1}', type="short")] * 3
    failing = JobSpec(payload=b'{"number": "none"}', type="short", max_retries=0)
    unknown = JobSpec(payload=b"{}", type="nobody-knows")
    pausing = JobSpec(payload=b"{}", type="fails")
    results = await backend.submit([*done, failing, pausing, unknown])
    for result in results[:-2]:
        await backend.wait(result.unwrap(), patience.longest(30))
    with pytest.raises(NotFound):
        await backend.get("00000000-0000-4000-8000-000000000000")
    async with plain_http(site.url) as stranger:
        assert (await stranger.get("/status", headers={"X-API-Key": "x" * 20})).status_code == 401


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.req("jq:FR-040", "jq:AC-6", "inp:PROD", "sch:ROADMAP")
async def test_prometheus_shows_every_metric_and_evaluates_every_expression(
    tmp_path: Path,
    postgres_dsn: str,
    own_redis: OwnRedis,
    kafka: Topics,
    own_prometheus: OwnPrometheus,
) -> None:
    topics = ("jobs", "dead_letters", "queues")
    redis = own_redis()
    settings = {f"JQ_KAFKA_TOPIC_{one.upper()}": kafka.name(one) for one in topics} | {
        "JQ_KAFKA_BOOTSTRAP": kafka.bootstrap,
        "JQ_KAFKA_REPLICATION": "1",
        "JQ_AUTH_API_KEYS": f"all:client+operator+worker:{KEY}",
        "JQ_API_KEY": KEY,
        "JQ_WORKER_HEARTBEAT_INTERVAL": "1",
    }
    site = Site(tmp_path, settings, 2, db_url=postgres_dsn, redis_url=redis.url)
    backend = GrpcBackend(site.target, credentials=Credentials(api_key=KEY))
    try:
        for number in range(2):
            await site.server(number, JQ_WORKER_CONCURRENCY="0")
        await site.worker("w", JQ_WORKER_METRICS_PORT=str(metrics_port := ports.take()))
        await some_of_everything(site, backend)
        prometheus = own_prometheus(scraping(site, metrics_port))
        async with Api(prometheus.url) as api:
            await every_part_is_scraped(api)
            redis.kill()
            await everything_is_shown(api, site, backend)
            await alerts_are_evaluated(api)
    finally:
        await backend.stop()
        await site.end()


async def every_part_is_scraped(api: Api) -> None:
    async with patience.timeout(60):
        while True:
            targets = (await api.get("targets"))["activeTargets"]
            if {target["health"] for target in targets} == {"up"}:
                break
            await asyncio.sleep(0.2)
    assert sorted(target["labels"]["job"] for target in targets) == [
        "jq-server", "jq-server", "jq-worker",
    ]  # fmt: skip


async def everything_is_shown(api: Api, site: Site, backend: GrpcBackend) -> None:
    """Each panel has something to show, after a little of everything."""
    missing = dict(SHOWN)
    limit = patience.Limit(90)
    while missing and not limit.over:
        await some_of_everything(site, backend)
        for where, expression in list(missing.items()):
            if await api.series(expression):
                del missing[where]
        await asyncio.sleep(0.2)
    assert missing == {}, site.log_tail()
    for metric, labels in REQUIRED.items():
        found = await api.series(f'{metric}{{job="jq-server"}}')
        assert found, metric
        for one in found:
            assert set(one["metric"]) - {"__name__", "job", "instance"} == labels
    (worker,) = await api.series('jq_worker_job_concurrency{job="jq-worker"}')
    assert worker["metric"]["worker_id"] == "w"


async def alerts_are_evaluated(api: Api) -> None:
    for _, expression in EXPRESSIONS:
        await api.series(expression)  # without an error or a warning
    expected = {"JobqueueJobsWithoutWorker", "JobqueueRedisAway"}
    critical = {rule["alert"] for rule in RULES if rule["labels"]["severity"] == "critical"}
    async with patience.timeout(60):
        while True:
            (group,) = (await api.get("rules"))["groups"]
            rules = {rule["name"]: rule for rule in group["rules"]}
            assert not {rule.get("lastError") for rule in rules.values()} - {None, ""}
            active = {name for name, rule in rules.items() if rule["alerts"]}
            # A scrape that was late is a server that is away, until the next one.
            if {rule["health"] for rule in rules.values()} == {"ok"} and (
                active & (expected | critical) == expected
            ):
                break
            await asyncio.sleep(0.2)
    assert set(rules) == {rule["alert"] for rule in RULES}
    summary = rules["JobqueueJobsWithoutWorker"]["alerts"][0]["annotations"]["summary"]
    assert summary == "No worker takes some jobs of queue default"
