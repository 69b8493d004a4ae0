"""``make bench-replicated``: the replicated topology on a private PostgreSQL and Redis.

Each figure comes with its conditions; ratios compare sides that were measured in turn. Parts that
take minutes run only when they are named, or with --long.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import uvloop

from bench.parts import Part, add_common, add_sizes, measure_each, sizes_of, write
from bench.processes import PROFILES
from bench.progress import progress
from bench.replicated import aged, pressure, rates, running, scaling
from bench.replicated.ground import ground, scratch
from bench.replicated.sizes import Sizes
from bench.report import Figure, show

SHORT: dict[str, Part] = {
    "batch": rates.batch,
    "calls": rates.calls,
    "drain": rates.drain,
    "direct": rates.direct,
    "latency": running.latency,
    "cycle": rates.cycle,
    "scaling": scaling.scaling,
}
LONG: dict[str, Part] = {
    "memory": running.memory,
    "crowd": scaling.crowd,
    "finished": aged.finished,
    "delayed": aged.delayed,
    "pinned": pressure.pinned,
    "scanned": pressure.scanned,
}
PARTS = SHORT | LONG


def main() -> int:
    """Measure, print a table, keep the figures on request."""
    options = _options()
    sizes = sizes_of(options, Sizes)
    names = options.only or [*SHORT, *(LONG if options.long else ())]
    figures: list[Figure] = []
    if options.profile:
        options.profile.mkdir(parents=True, exist_ok=True)
        os.environ[PROFILES] = str(options.profile.absolute())
    # Terminated like interrupted: the servers are no children that would end with us.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with scratch(options.folder) as folder, ground(folder, options.calm) as prepared:
        where = uvloop.run(prepared.conditions())
        try:
            with progress("starting PostgreSQL and Redis") as say:
                chosen = {name: PARTS[name] for name in names}
                for measured in measure_each("bench-replicated", chosen, say, prepared, sizes):
                    figures += measured
        finally:  # a part that fails does not take the others' figures with it
            show(f"jobqueue, replicated topology: {where}", figures)
            if options.json:
                write(options.json, where, figures)
    return 1 if options.strict and any(figure.met is False for figure in figures) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replicated", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    parser.add_argument("--long", action="store_true", help=f"also: {', '.join(LONG)}")
    parser.add_argument(
        "--folder", type=Path, help="keep PostgreSQL here, and the jobs it was filled with"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="run the programs under cProfile"
    )
    add_common(parser)
    add_sizes(parser, Sizes)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
