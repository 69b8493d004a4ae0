"""``make bench-replicated``: the replicated topology on a private PostgreSQL and Redis.

Each figure comes with its conditions; ratios compare sides that were measured in turn. Parts that
take minutes run only when they are named, or with --long.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path

import uvloop

from bench.processes import PROFILES
from bench.progress import Say, progress
from bench.replicated import aged, pressure, rates, running, scaling
from bench.replicated.ground import Ground, ground, scratch
from bench.replicated.sizes import Sizes
from bench.report import Figure, show, write_json

Part = Callable[..., Awaitable[list[Figure]]]

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
    sizes = Sizes(**{field.name: getattr(options, field.name) for field in fields(Sizes)})
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
                for number, name in enumerate(names, 1):
                    announce = _prefixed(say, f"{number}/{len(names)} {name}")
                    figures += _measured(name, prepared, sizes, announce)
        finally:  # a part that fails does not take the others' figures with it
            show(f"jobqueue, replicated topology: {where}", figures)
            if options.json:
                write_json(options.json, where, [*_others_in(options.json, figures), *figures])
    return 1 if options.strict and any(figure.met is False for figure in figures) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.replicated", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    parser.add_argument("--long", action="store_true", help=f"also: {', '.join(LONG)}")
    parser.add_argument(
        "--folder", type=Path, help="keep PostgreSQL here, and the jobs it was filled with"
    )
    parser.add_argument(
        "--calm", type=float, default=30.0, metavar="SECONDS",
        help="wait at most so long for an idle machine before each measurement (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="run the programs under cProfile"
    )
    parser.add_argument(
        "--json",
        type=Path,
        help="also write the figures to this file; those of other parts in it stay",
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    for one in fields(Sizes):
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=type(one.default),
            default=one.default,
            help=f"{one.metadata['about']} (%(default)s)",
        )
    return parser.parse_args()


def _others_in(path: Path, figures: list[Figure]) -> list[Figure]:
    """What the file has about parts that were not measured now: the long ones are run alone."""
    if not path.exists():
        return []
    known = [Figure(**figure) for figure in json.loads(path.read_text())["figures"]]
    commands = {figure.command for figure in figures}
    return [figure for figure in known if figure.command not in commands]


def _measured(name: str, prepared: Ground, sizes: Sizes, say: Say) -> list[Figure]:
    say("")
    part = PARTS[name]
    more = (say,) if "say" in inspect.signature(part).parameters else ()

    async def run() -> list[Figure]:
        return await part(prepared, sizes, *more)

    command = f"make bench-replicated ARGS='--only {name}'"
    return [replace(figure, command=command) for figure in uvloop.run(run())]


def _prefixed(say: Say, prefix: str) -> Say:
    return lambda text: say(f"{prefix}: {text}" if text else prefix)


if __name__ == "__main__":
    sys.exit(main())
