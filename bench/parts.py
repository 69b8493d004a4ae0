"""Commands that measure in parts, each of which can be chosen."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bench.progress import Say
from bench.report import Figure, write_json

Part = Callable[..., Awaitable[list[Figure]]]
Sizes = TypeVar("Sizes")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that every such command has."""
    parser.add_argument(
        "--calm", type=float, default=30.0, metavar="SECONDS",
        help="wait at most so long for an idle machine before each measurement (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--json",
        type=Path,
        help="also write the figures to this file; those of other parts in it stay",
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")


def add_sizes(parser: argparse.ArgumentParser, sizes: type[Any]) -> None:
    """An option for each size."""
    for one in fields(sizes):
        parser.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=type(one.default),
            default=one.default,
            help=f"{one.metadata['about']} (%(default)s)",
        )


def sizes_of(options: argparse.Namespace, sizes: type[Sizes]) -> Sizes:
    """What was chosen."""
    return sizes(**{one.name: getattr(options, one.name) for one in fields(sizes)})  # type: ignore[arg-type]


def measure_each(
    command: str, parts: Mapping[str, Part], say: Say, *given: object
) -> Iterator[list[Figure]]:
    """The figures of each part in turn, with the command that measures them again."""
    for number, (name, part) in enumerate(parts.items(), 1):
        prefix = f"{number}/{len(parts)} {name}"
        say(prefix)
        announce = _prefixed(say, prefix)
        more = (announce,) if "say" in inspect.signature(part).parameters else ()

        async def run(part: Part = part, more: tuple[Say, ...] = more) -> list[Figure]:
            return await part(*given, *more)

        again = f"make {command} ARGS='--only {name}'"
        yield [replace(figure, command=again) for figure in uvloop.run(run())]


def _prefixed(say: Say, prefix: str) -> Say:
    return lambda text: say(f"{prefix}: {text}" if text else prefix)


def write(path: Path, where: str, figures: list[Figure]) -> None:
    """Keep the figures, and what the file has about parts that were not measured now: those that
    take long are run alone."""
    known: list[Figure] = []
    if path.exists():
        known = [Figure(**figure) for figure in json.loads(path.read_text())["figures"]]
    commands = {figure.command for figure in figures}
    others = [figure for figure in known if figure.command not in commands]
    write_json(path, where, [*others, *figures])
