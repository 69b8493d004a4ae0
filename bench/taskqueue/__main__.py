"""``make bench-taskqueue``: six services against six nodes, as real processes on this machine.

Both get the same load for the same time, with the same warm-up, and 6 slots; one design runs at a
time. ListJobs is measured apart: with nodes it lists one node only.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import uvloop

from bench.progress import Say, progress
from bench.report import conditions, write_json
from bench.taskqueue import load
from bench.taskqueue.designs import DESIGNS, fleet
from bench.taskqueue.figures import Result, compare, figures
from bench.taskqueue.profile import Profile, add_options, profiles
from jobqueue.bench.machine import CpuTimes, calm


async def measure(design: str, levels: list[Profile], say: Say, patience: float) -> list[Result]:
    """Start a design, apply each level of load in turn, stop it."""
    results = []
    say(f"{design}: waiting for an idle machine")
    await calm(patience)
    say(f"{design}: starting")
    async with fleet(DESIGNS[design]()) as running:
        for profile in levels:
            say(f"{design}: {profile}")
            cpu = CpuTimes(running.pids, {})
            measured = await load.apply(running.client, profile)
            results.append(Result(design, profile, measured, cpu.spent().shares()))
    return results


def main() -> int:
    """Measure, print a table, keep the figures on request."""
    options = _options()
    levels = profiles(options)
    results: list[Result] = []
    # Terminated like interrupted: the services are no children that would end with us.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with progress("starting") as say:
        for design in options.design or DESIGNS:
            # A loop for each: nothing of one design is left when the other is measured.
            results += uvloop.run(measure(design, levels, say, options.calm))
    command = "make bench-taskqueue" + (f" ARGS='{_given()}'" if _given() else "")
    kept = [replace(one, command=command) for result in results for one in figures(result)]
    where = conditions(Path(tempfile.gettempdir()))
    compare(f"jobqueue, taskqueue.v1 in two designs: {where}", results)
    if options.json:
        write_json(options.json, where, kept)
    return 0


def _given() -> str:
    return " ".join(sys.argv[1:])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.taskqueue", description=__doc__)
    parser.add_argument("--design", choices=DESIGNS, action="append", help="default: both")
    add_options(parser)
    parser.add_argument(
        "--calm", type=float, default=30.0, metavar="SECONDS",
        help="wait at most so long for an idle machine before each design (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--json", type=Path, help="also write the figures to this file, like results/taskqueue.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
