"""``make bench-streaming``: the event stream on a private PostgreSQL, Redis and Kafka.

How fast the relay is, what the stream costs the jobs, how long a rebuild takes, and that Kafka
equals job_event whatever happens. The broker shares the machine with everything else.
"""

from __future__ import annotations

import argparse
import signal
import sys

import uvloop

from bench.parts import Part, add_common, add_sizes, measure_each, sizes_of, write
from bench.progress import progress
from bench.replicated.ground import scratch
from bench.report import Figure, show
from bench.streaming import draining, relaying, replaying, shown, topology
from bench.streaming.ground import ground
from bench.streaming.sizes import Sizes

FIGURES: dict[str, Part] = {
    "relay": relaying.relay,
    "memory": relaying.memory,
    "drain": draining.drain,
    "replay": replaying.replay,
    "topology": topology.topology,
}
SCENARIOS: dict[str, Part] = {
    "plain": shown.plain,
    "outage": shown.outage,
    "killed": shown.killed,
    "reverse": shown.reverse,
    "left-open": shown.left_open,
}
PARTS = FIGURES | SCENARIOS
ALL_SCENARIOS = "scenarios"


def main() -> int:
    """Measure, print a table, keep the figures on request."""
    options = _options()
    sizes = sizes_of(options, Sizes)
    names = options.only or [*PARTS]
    if ALL_SCENARIOS in names:
        names = [*(name for name in names if name in PARTS), *SCENARIOS]
    figures: list[Figure] = []
    # Terminated like interrupted: the servers are no children that would end with us.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with scratch() as folder, ground(folder, options.calm) as prepared:
        where = uvloop.run(prepared.conditions())
        try:
            with progress("starting PostgreSQL, Redis and Kafka") as say:
                chosen = {name: PARTS[name] for name in names}
                for measured in measure_each("bench-streaming", chosen, say, prepared, sizes):
                    figures += measured
        finally:  # a part that fails does not take the others' figures with it
            show(f"jobqueue, event stream: {where}", figures)
            if options.json:
                write(options.json, where, figures)
    return 1 if options.strict and any(figure.met is False for figure in figures) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.streaming", description=__doc__)
    parser.add_argument(
        "--only",
        choices=[*PARTS, ALL_SCENARIOS],
        action="append",
        help=f"may be repeated; {ALL_SCENARIOS} are {', '.join(SCENARIOS)}",
    )
    add_common(parser)
    add_sizes(parser, Sizes)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
