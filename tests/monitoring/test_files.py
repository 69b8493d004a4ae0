"""Dashboard and alerts name only what is there: metrics, labels, states, methods, statements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from jobqueue.cli.worker import run as run_worker
from jobqueue.config import Settings
from jobqueue.core.job import JobQuery, JobSpec, Worker, WorkerInfo, WorkerStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import Queue, QueueStats
from jobqueue.core.store import Lag
from jobqueue.engine.engine import Engine
from jobqueue.engine.settings import EngineSettings
from jobqueue.metrics import Metrics
from jobqueue.pb.jq.v1 import client_pb2, operator_pb2, worker_pb2
from jobqueue.stores.sqlite.store import SqliteStore
from tests.monitoring import promql
from tests.monitoring.files import (
    DASHBOARD,
    DASHBOARD_EXPRESSIONS,
    DOCS,
    EXPRESSIONS,
    PANELS,
    PROMETHEUS,
    RULES,
    SCRAPES,
)

TARGET_LABELS = {"job", "instance"}  # Prometheus's own
QUEUE_VARIABLE = "$queue"


class Figures:
    async def list_queues(self) -> list[QueueStats]:
        return [QueueStats(queue=Queue(name="default"), depth={})]

    async def list_workers(self) -> list[Worker]:
        info = WorkerInfo(id="w", incarnation=1, hostname="h", pid=1, concurrency=1, queues=("q",))
        return [Worker(info=info, status=WorkerStatus.ONLINE, registered_at=0, last_seen=0)]


async def families() -> list[Metric]:
    """Every family of metrics that a scrape can show."""
    metrics = Metrics()
    metrics.entered("q", State.ASSIGNED, 1)
    metrics.ran("q", [0.1])
    metrics.scheduled(0.001, {"q": 1})
    metrics.queried("claim", 0.001)
    metrics.locked("take", 0.001)
    metrics.lock_failed("timeout")
    metrics.locks_up(True)
    metrics.watch_overruns("w", lambda: 1)
    metrics.watch_breakers("w", lambda: {"t": 1})
    metrics.stream_lag(Lag(1, 1.0, 1))
    metrics.published("t", 1)
    metrics.publish_failed("t", 1)
    metrics.leading(1)
    metrics.login_failed("http")
    metrics.on_call("/jq.v1.ClientService/Submit", "OK", 0.01)
    body, _ = await metrics.render(Figures())
    return list(text_string_to_metric_families(body.decode()))


async def rendered() -> dict[str, set[str]]:
    """Every sample that a scrape can show, with its labels."""
    found: dict[str, set[str]] = {"up": set()}
    for family in await families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def our_families() -> dict[str, Metric]:
    """Ours, as the docs name them: a counter by its sample."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in await families()
        if family.name.startswith("jq_")
    }


@pytest.mark.req("inp:PROD")
@pytest.mark.parametrize(("where", "text"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
async def test_metrics_and_labels_exist(where: str, text: str) -> None:
    known = await rendered()
    query = promql.parse(text)
    assert query.selectors
    available = set(TARGET_LABELS)
    for selector in query.selectors:
        assert selector.metric in known, f"there is no metric {selector.metric}"
        labels = known[selector.metric] | TARGET_LABELS
        for name, _, _ in selector.labels:
            assert name in labels, f"{selector.metric} has no label {name}"
        available |= labels
    assert query.grouped <= available


def values() -> Iterator[tuple[str, str, str]]:
    for _, text in EXPRESSIONS:
        for selector in promql.parse(text).selectors:
            yield from selector.labels


@pytest.fixture(scope="module")
def jobs() -> set[str]:
    return {scrape["job_name"] for scrape in SCRAPES["scrape_configs"]}


async def statements(folder: Path) -> set[str]:
    """The names under which the SQLite store tells its statements."""
    names: set[str] = set()

    class Noting(Metrics):
        def queried(self, name: str, seconds: float) -> None:
            names.add(name)

    observer = Noting()
    engine = Engine(
        SqliteStore(folder / "jobs.db", observer=observer), EngineSettings(), observer=observer
    )
    await engine.start()
    await engine.submit([JobSpec(payload=b"1", queue="default")])
    jobs = (await engine.list_jobs(JobQuery())).jobs
    await engine.cancel(jobs[0].id)
    await engine._store.jobs.claim([])
    await engine.stop()
    return names


async def test_label_values_exist(jobs: set[str], tmp_path: Path) -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in (client_pb2, operator_pb2, worker_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    known = {
        "status": {state.name for state in State},
        "status_code": {code.name for code in grpc.StatusCode},
        "method": methods,
        "job": jobs,
        "query_name": await statements(tmp_path),
    }
    seen = set()
    for label, operator, value in values():
        if value == QUEUE_VARIABLE:
            continue
        seen.add(label)
        if operator in ("=", "!="):
            assert value in known[label]
        elif re.fullmatch(r"[A-Za-z_|]+", value):
            assert set(value.split("|")) <= known[label]
        else:
            assert [one for one in known[label] if re.fullmatch(value, one)], value
    assert seen == set(known)


# -- the alerts --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_can_be_acted_on(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert all(rule["annotations"].values())
    assert re.fullmatch(r"\d+m", rule["for"])
    name = rule["alert"]
    assert rule["annotations"]["runbook"] == f"docs/monitoring.md#{name.lower()}"
    paragraph = re.search(rf"^### {name}\n\n(.+?)(?=\n### |\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert paragraph is not None
    assert len(paragraph[1]) > 200
    # A label in the text must survive the expression's grouping.
    grouped = promql.parse(rule["expr"]).grouped or TARGET_LABELS
    for used in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
        assert used in grouped


def test_what_was_asked_for_is_watched() -> None:
    assert {rule["alert"] for rule in RULES} >= {
        "JobqueueDeadLettersGrowing",
        "JobqueueQueueNotDraining",
        "JobqueueNoActiveWorker",
        "JobqueueSchedulerStalled",
        "JobqueueStoreErrors",
        "JobqueueSubmitSlow",
        "JobqueueRedisAway",
        "JobqueueStreamBehind",
        "JobqueueRecordsRefused",
        "JobqueueStreamRefused",
        "JobqueueNoLeader",
    }
    assert sorted(re.findall(r"^### (\w+)$", DOCS, re.MULTILINE)) == sorted(
        rule["alert"] for rule in RULES
    )


async def test_every_metric_is_in_the_docs() -> None:
    rows = {
        name: {word.strip() for word in labels.split(",") if word.strip()}
        for name, labels in re.findall(r"^\| `(jq_\w+)` \| ([^|]*)\|", DOCS, re.MULTILINE)
    }
    known = {
        name: {label for sample in family.samples for label in sample.labels if label != "le"}
        for name, family in (await our_families()).items()
    }
    assert rows == known


def test_the_commands_in_the_runbooks_exist(capsys: pytest.CaptureFixture[str]) -> None:
    from jobqueue.cli.ctl import run

    for group, command in set(re.findall(r"jq-ctl (\w+)\s+([a-z]+)", DOCS)):
        assert run([group, command, "--help"]) == 0, (group, command)
    assert run(["status", "--help"]) == 0
    assert run_worker(["--help"]) == 0
    capsys.readouterr()


# -- the scrape configuration and the dashboard ------------------------------------------------


def test_the_scrapes_reach_the_default_ports() -> None:
    targets = {
        scrape["job_name"]: scrape["static_configs"][0]["targets"]
        for scrape in SCRAPES["scrape_configs"]
    }
    settings = Settings()
    assert targets == {
        "jq-server": [f"localhost:{settings.http.port}"],
        "jq-worker": [f"localhost:{settings.worker.metrics_port}"],
    }
    (rules,) = SCRAPES["rule_files"]
    assert (PROMETHEUS / rules).exists()


def test_the_dashboard_can_be_imported_and_shows_what_it_should() -> None:
    assert DASHBOARD["uid"] == "jobqueue"
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(panel[part] for part in ("title", "description", "targets"))


@pytest.mark.req("jq:FR-040")
async def test_the_dashboard_shows_every_metric() -> None:
    shown = {s.metric for _, text in DASHBOARD_EXPRESSIONS for s in promql.parse(text).selectors}
    for name, family in (await our_families()).items():
        assert shown & {sample.name for sample in family.samples}, name


# -- the reader of expressions -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["sum(a", "sum(a))", "rat(a[5m])", "a{b}", 'a{b="c"', "a[5 minutes]", "a ? b", "}"],
)
def test_a_broken_expression_is_noticed(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        promql.parse(text)


def test_an_expression_is_taken_apart() -> None:
    query = promql.parse('sum by (le, q) (rate(a_bucket{x="1", y!~"2|3"}[5m])) > 0.5 unless b')
    assert query.grouped == {"le", "q"}
    assert [(s.metric, s.labels) for s in query.selectors] == [
        ("a_bucket", [("x", "=", "1"), ("y", "!~", "2|3")]),
        ("b", []),
    ]
