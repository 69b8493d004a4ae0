"""``make bench``: the embedded topology, and the two designs of taskqueue.v1, in one run.

Submit, drain, latency and memory of the one; the others under one load by `jq-bench run smoke`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.report import Figure, conditions, show, write_json

STORES = ("memory", "sqlite")
DESIGNS = ("run", "smoke", "--topology", "microservices", "--topology", "nodes")


def _output(module: str, *arguments: str) -> str:
    """Each in a process of its own, so that none inherits another's heap."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, check=True, timeout=900, text=True
    ).stdout


def _measure(module: str, store: str, jobs: int) -> list[Figure]:
    return _figures(json.loads(_output(module, store, str(jobs)).splitlines()[-1]))


def _measure_designs() -> str:
    """Their table, which has the two side by side."""
    with tempfile.TemporaryDirectory(prefix="jobqueue-bench-") as folder:
        return _output("jobqueue.cli.bench", *DESIGNS, "--out", str(Path(folder) / "records"))


def _figures(documents: list[dict[str, Any]]) -> list[Figure]:
    return [replace(Figure(**one), command="make bench") for one in documents]


def main() -> int:
    """Measure, print a table, keep the figures on request."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs per measurement")
    parser.add_argument("--store", choices=STORES, action="append", help="default: all")
    parser.add_argument(
        "--designs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure taskqueue.v1",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    stores = options.store or STORES
    figures: list[Figure] = []
    table = ""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        steps = [(module, store) for store in stores for module in ("bench.local", "bench.remote")]
        count = len(steps) + options.designs
        for number, (module, store) in enumerate(steps, 1):
            task = progress.add_task(f"{number}/{count} {store}, {module.removeprefix('bench.')}")
            figures += _measure(module, store, options.jobs)
            progress.remove_task(task)
        if options.designs:
            progress.add_task(f"{count}/{count} taskqueue.v1: six services, then six nodes")
            table = _measure_designs()
    where = conditions(Path(tempfile.gettempdir()))
    show(f"jobqueue, embedded topology: {where}", figures)
    print(table, end="")
    if options.json:
        write_json(options.json, where, figures)
    return 1 if options.strict and any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
