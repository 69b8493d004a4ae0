"""``make bench``: submit, drain, latency and memory of the embedded topology, in one run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.report import Figure, conditions, show, write_json

STORES = ("memory", "sqlite")


def _measure(module: str, store: str, jobs: int) -> list[Figure]:
    """Each in a process of its own, so that none inherits another's heap."""
    command = [sys.executable, "-m", module, store, str(jobs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=900)
    figures = [Figure(**figure) for figure in json.loads(done.stdout.splitlines()[-1])]
    return [replace(figure, command="make bench") for figure in figures]


def main() -> int:
    """Measure, print a table, keep the figures on request."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs per measurement")
    parser.add_argument("--store", choices=STORES, action="append", help="default: all")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    stores = options.store or STORES
    figures: list[Figure] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        steps = [(module, store) for store in stores for module in ("bench.local", "bench.remote")]
        for number, (module, store) in enumerate(steps, 1):
            task = progress.add_task(
                f"{number}/{len(steps)} {store}, {module.removeprefix('bench.')}"
            )
            figures += _measure(module, store, options.jobs)
            progress.remove_task(task)
    where = conditions(Path(tempfile.gettempdir()))
    show(f"jobqueue, embedded topology: {where}", figures)
    if options.json:
        write_json(options.json, where, figures)
    return 1 if options.strict and any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
