"""What is in deploy/ for Prometheus and Grafana, and the expressions in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
ALERTS = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())
SCRAPES = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
DOCS = (ROOT / "docs/monitoring.md").read_text()
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]


def panel_expressions() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]


def variable_expressions() -> Iterator[tuple[str, str]]:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            # label_values(metric, label): the label is checked as one that is grouped by.
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert found is not None, variable["query"]["query"]
            yield variable["name"], f"max by ({found[2]}) ({found[1]})"


def scaling_expressions() -> Iterator[tuple[str, str]]:
    """What the autoscaler of Kubernetes reads."""
    values = ROOT / "deploy/kubernetes/components/autoscaling/adapter-values.yaml"
    for rule in yaml.safe_load(values.read_text())["rules"]["external"]:
        yield rule["name"]["as"], rule["metricsQuery"]


DASHBOARD_EXPRESSIONS = [*panel_expressions(), *variable_expressions()]
SHOWN = [*DASHBOARD_EXPRESSIONS, *scaling_expressions()]  # never empty where jobs flow
EXPRESSIONS = [*((rule["alert"], rule["expr"]) for rule in RULES), *SHOWN]
