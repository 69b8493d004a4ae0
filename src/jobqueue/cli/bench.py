"""Provide the program ``jq-bench``: it measures topologies and shows the results."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jobqueue.bench.cell import RunPlace
from jobqueue.cli import bench_peers, bench_report
from jobqueue.cli.display import note, print_json, print_table
from jobqueue.cli.program import (
    VersionOption,
    examples,
    run_async,
    run_program,
    terminated_like_interrupted,
)
from jobqueue.cli.session import Format, OutputOption
from jobqueue.cli.version import commit
from jobqueue.connect import extras
from jobqueue.core.errors import InvalidArgument, NotFound

PROGRAM = "jq-bench"
_RESULTS = Path("results")
_QUIET = 10.0  # seconds
_WIDTH = 120  # of a table in a file or a pipe

app = typer.Typer(
    name=PROGRAM,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    epilog=examples(
        "jq-bench run smoke",
        "jq-bench run parity --set callers=1,8,32 --set seconds=10",
        "jq-bench run latency --topology embedded --out /tmp/latency",
        "jq-bench run replicated --only drain --only latency",
        "jq-bench report results/parity",
        "jq-bench peers",
    ),
)
app.add_typer(bench_report.app)
app.command("peers", epilog=bench_peers.EXAMPLES)(bench_peers.peers)


@app.callback()
def bench(version: VersionOption = False) -> None:
    """Measure topologies under the same load, and show what each topology costs.

    A profile names the topologies, the load, the duration and the number of runs. A record of every
    run is written to a folder.
    """
    if extras.missing(["bench"]):
        raise NotFound(
            f"{PROGRAM} needs packages that are not installed: {extras.how_to_install(['bench'])}"
        )


ProfileArgument = Annotated[
    str, typer.Argument(metavar="PROFILE", help="A shipped profile, or the path of a .yml file.")
]


@app.command(
    "run",
    epilog=examples(
        "jq-bench run parity",
        "jq-bench run parity --set work_ms=0,20,100 --set repetitions=5",
        "jq-bench run smoke --topology embedded",
        "jq-bench run parity --place containers",
        "jq-bench run parity --place containers --at microservices=gateway:50051"
        " --at nodes=node-0:50051,node-1:50051,node-2:50051,node-3:50051,node-4:50051,node-5:50051",
    ),
)
def run_profile(
    name: ProfileArgument,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="SCENARIO", help="Measure only this scenario; may be repeated."),
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(help="Measure this topology only; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the records. Default: results/PROFILE, or a new folder beside it.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another value for a factor or a setting of the profile, or several values with"
            " commas between them; may be repeated.",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPOLOGY=HOST:PORT[,…]",
            help="Measure a topology that runs already; may be repeated.",
        ),
    ] = None,
    place: Annotated[
        RunPlace,
        typer.Option(
            help="Start processes, or containers by their compose files. With --at, say which of"
            " the two run there."
        ),
    ] = RunPlace.PROCESSES,
    compose: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the compose files. Default: deploy/compose, as in a checkout.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a scenario misses a target.")
    ] = False,
) -> None:
    """Run all measurements of a profile, print a table of the results, and write the report."""
    from jobqueue.bench.containers import COMPOSE
    from jobqueue.bench.measures import measured
    from jobqueue.bench.profile import load, setting
    from jobqueue.bench.report.writing import write
    from jobqueue.bench.run import Wish
    from jobqueue.bench.run import run as run_all
    from jobqueue.bench.table import compare, scenarios

    profile = load(name).with_(dict(map(setting, sets or ())), topology or (), only or ())
    usual = profile.name if place is RunPlace.PROCESSES else f"{profile.name}-{place}"
    wish = Wish(
        profile=profile,
        out=out or bench_peers.new_folder(_RESULTS / usual),
        place=place,
        at=dict(_running(one) for one in at or ()),
        compose=compose or COMPOSE,
        commit=commit(),
        command=shlex.join([PROGRAM, *sys.argv[1:]]),
    )
    wish.check()
    with terminated_like_interrupted(), _shown_progress() as progress:
        made = run_async(run_all(wish, progress))
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    if profile.scenarios:
        console.print(scenarios(made))
    if profile.topologies:
        console.print(compare(made))
    disturbed = sum(record.machine.disturbed for record in made)
    if disturbed:
        note(
            f"warning: {disturbed} of {len(made)} runs were disturbed by other programs on this"
            " machine"
        )
    note(f"{len(made)} records were written to {wish.out}")
    note("drawing the report")
    typer.echo(write([wish.out], wish.out))
    if strict and not all(one.met for one in measured(made)):
        raise typer.Exit(1)


@app.command()
def profiles(output: OutputOption = None) -> None:
    """List the shipped profiles."""
    from jobqueue.bench.profile import load, shipped

    found = [load(name) for name in shipped()]
    if output is Format.JSON:
        print_json([one.as_json() for one in found])
        return
    rows = [
        [
            one.name,
            ", ".join(dict.fromkeys([*(shape.topology for shape in one.shapes()), *one.scenarios])),
            f"{one.runs}",
            f"{one.seconds:g}" if one.topologies else "",
            one.about,
        ]
        for one in found
    ]
    print_table(["PROFILE", "TOPOLOGIES", "RUNS", "SECONDS EACH", "ABOUT"], rows, "no profiles")


@app.command()
def limit(
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.", min=0.1)] = 3.0,
) -> None:
    """Measure the load generator itself, with a target that answers at once."""
    from jobqueue.bench.limit import generator_limit

    print_json(run_async(generator_limit(seconds)))


def _running(text: str) -> tuple[str, list[str]]:
    name, sep, addresses = text.partition("=")
    found = [one.strip() for one in addresses.split(",")]
    if not sep or not all(":" in one for one in found):
        raise InvalidArgument(
            "--at", f"{text!r} is not TOPOLOGY=HOST:PORT; separate several addresses by commas"
        )
    return name, found


class _Lines:
    """Shows progress without a terminal: prints a line for each run, and lines during a run."""

    def __init__(self) -> None:
        self._runs = self._ended = 0
        self._began = time.monotonic()
        self._said, self._said_at = "", 0.0

    def begin(self, runs: int) -> None:
        self._runs = runs

    def doing(self, text: str) -> None:
        within = ": ".join(text.split(": ")[:2])  # the rest of a scenario's text changes often
        if within == self._said and time.monotonic() < self._said_at + _QUIET:
            return
        self._said, self._said_at = within, time.monotonic()
        left = ""
        if self._ended:
            each = (time.monotonic() - self._began) / self._ended
            left = f", {each * (self._runs - self._ended) / 60:.1f} min left"
        note(f"{self._ended}/{self._runs} runs{left}: {text}")

    def done(self) -> None:
        self._ended += 1

    def more(self) -> None:
        self._runs += 1


class _Bar:
    """Shows progress on a terminal, as a bar with the remaining time."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task = shown.add_task("")
        self._runs = 0

    def begin(self, runs: int) -> None:
        self._runs = runs
        self._shown.update(self._task, total=runs)

    def doing(self, text: str) -> None:
        self._shown.update(self._task, description=text)

    def done(self) -> None:
        self._shown.advance(self._task)

    def more(self) -> None:
        self._runs += 1
        self._shown.update(self._task, total=self._runs)


@contextlib.contextmanager
def _shown_progress() -> Iterator[_Lines | _Bar]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as shown:
        yield _Bar(shown)


def run(argv: Sequence[str] | None = None) -> int:
    """Run jq-bench with the given arguments, or those of this process; return the exit status."""
    return run_program(app, PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(run())
