"""``make bench-recovery``: faults in the replicated topology, and the time until they are over.

Servers and workers are real programs on a private PostgreSQL and Redis. They are killed, stopped,
slowed down, or cut off from PostgreSQL; each figure says how long work was disturbed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import uvloop

from bench.parts import Part, add_common, add_sizes, measure_each, sizes_of, write
from bench.progress import progress
from bench.recovery import faults
from bench.recovery.sizes import Sizes
from bench.replicated.ground import ground, scratch
from bench.report import Figure, show

PARTS: dict[str, Part] = {
    "start": faults.start,
    "stopped": faults.stopped,
    "silent": faults.silent,
    "killed": faults.killed,
    "restarted": faults.restarted,
    "slow": faults.slow,
}


def main() -> int:
    """Measure, print a table, keep the figures on request."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    add_common(parser)
    add_sizes(parser, Sizes)
    options = parser.parse_args()
    sizes = sizes_of(options, Sizes)
    figures: list[Figure] = []
    # Terminated like interrupted: the servers are no children that would end with us.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with scratch() as folder, ground(folder, options.calm) as prepared:
        where = uvloop.run(prepared.conditions())
        try:
            with progress("starting PostgreSQL and Redis") as say:
                chosen = {name: PARTS[name] for name in options.only or PARTS}
                given = (prepared, sizes, folder)
                for measured in measure_each("bench-recovery", chosen, say, *given):
                    figures += measured
        finally:  # a part that fails does not take the others' figures with it
            show(f"jobqueue, recovery of the replicated topology: {where}", figures)
            if options.json:
                write(Path(options.json), where, figures)
    return 1 if options.strict and any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
