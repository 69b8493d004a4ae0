"""The gates that a merge has to pass are the ones we say they are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.req("jq:NFR-021")
def test_a_merge_needs_80_percent_of_the_lines_of_each_part() -> None:
    steps = [
        line.split("make ", 1)[1].strip()
        for line in (ROOT / ".ci/run").read_text().splitlines()
        if line.startswith("step ") and "make " in line
    ]
    assert steps.index("test") < steps.index("coverage")
    said = subprocess.run(
        ["make", "-n", "coverage"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for part in ("core/*", "engine/*", "stores/*", "config.py"):
        assert part in said
    assert "--fail-under=80" in said
    assert "|| exit 1" in said


def test_a_merge_needs_the_static_checks() -> None:
    text = (ROOT / ".ci/run").read_text()
    for check in ("make lint", "make typecheck", "proto --check", "proto --breaking"):
        assert check in text
