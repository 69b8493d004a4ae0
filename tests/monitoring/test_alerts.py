"""Alerts, judged by Prometheus's own tool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests import patience
from tests.monitoring.files import PROMETHEUS, RULES
from tests.services.run import Run

CASES = Path(__file__).with_name("alerts.test.yaml")


@pytest.fixture
def promtool(services: Run) -> str:
    found = services.need("prometheus").find()
    assert found is not None
    return str(found / "promtool")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience.longest(50))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.integration
def test_prometheus_takes_the_files(promtool: str) -> None:
    run(promtool, "check", "config", str(PROMETHEUS / "prometheus.yaml"))
    run(promtool, "check", "rules", str(PROMETHEUS / "alerts.yaml"))


@pytest.mark.integration
@pytest.mark.req("inp:PROD")
def test_each_alert_fires_and_does_not(promtool: str) -> None:
    run(promtool, "test", "rules", str(CASES))


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    found = set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        alert = case["name"].partition(":")[0]
        for judged in case["promql_expr_test"]:
            assert f'alertname="{alert}", alertstate="firing"' in judged["expr"]
            found.add((alert, bool(judged["exp_samples"])))
    assert found == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}
