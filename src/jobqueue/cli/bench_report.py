"""``jq-bench report``, ``pairs`` and ``regress``: results for people and for checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobqueue.cli.display import counted, note, print_json, print_table, progress
from jobqueue.cli.program import examples
from jobqueue.cli.session import Format, OutputOption
from jobqueue.core.errors import InvalidArgument

if TYPE_CHECKING:
    from jobqueue.bench.regress import Comparison, RegressRow

# Commands import the packages of the extra `bench`, so that the program can name missing ones.
PAIRS = 24  # by default: with these regress finds a loss of 15 % on a noisy machine
_LOST = 1  # the exit status of a loss

app = typer.Typer()


@app.command(
    epilog=examples(
        "jq-bench report results/parity",
        "jq-bench report results/processes results/containers --into results/overlay",
    )
)
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of results: one, or several to"
                                   " show together.", show_default=False)
    ],
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the report goes. Default: into the only folder.",
                     show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Make summary.csv, report.html and report.md from the records, and print the page's path."""
    from jobqueue.bench.report.writing import write

    if into is None and len(folders) > 1:
        raise InvalidArgument("--into", "say where the report of several folders goes")
    typer.echo(write(folders, into or folders[0]))


@app.command(
    epilog=examples(
        "jq-bench pairs ../before . --into results/pairs",
        "jq-bench regress results/pairs/base results/pairs/new",
    )
)
def pairs(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="What NEW is compared with: a"
                                         " checkout, a virtual environment or a Python.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The build in question, likewise.")],
    into: Annotated[Path, typer.Option(metavar="DIR", help="Where the folders base and new go.")],
    profile: Annotated[
        str, typer.Option(help="What is measured: a shipped profile, or the path of a .yml file.")
    ] = "regress",
    count: Annotated[
        int, typer.Option("--pairs", min=5, max=1000, help="How often each is measured.")
    ] = PAIRS,
) -> None:  # fmt: skip
    """Measure two builds in turn, for regress. Each brings its own jq-bench."""
    from jobqueue.bench import pairs as runs

    builds = runs.build("BASE", base), runs.build("NEW", new)
    with progress("runs", 2 * count) as bar:
        runs.run(*builds, profile, count, into, bar.advance)
    typer.echo(f"jq-bench regress {into / runs.BASE} {into / runs.NEW}")


@app.command(epilog=examples("jq-bench regress results/pairs/base results/pairs/new"))
def regress(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="A folder of results.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="One of runs beside those.")],
    output: OutputOption = None,
) -> None:
    """Tell whether NEW loses against BASE. Exit status 1: it does.

    Repetition k of both must have run one after the other, as jq-bench pairs does it.
    """
    from jobqueue.bench import records
    from jobqueue.bench.regress import compare

    found = compare(records.read([base]), records.read([new]))
    if output is Format.JSON:
        print_json(_document(found))
    else:
        _show(found)
    if found.worse:
        raise typer.Exit(_LOST)


def _show(found: Comparison) -> None:
    from jobqueue.bench.regress import FALSE_ALARMS, POWER, WANTED

    headers = ["MEASURE", "CELL", "PAIRS", "NEW/BASE", "INTERVAL", "CONFIDENCE", "DETECTABLE LOSS",
               "VERDICT"]  # fmt: skip
    print_table(headers, [_cells(row) for row in found.rows], "nothing to compare")
    if found.left_out:
        note(f"{counted(found.left_out, 'pair')} with a disturbed run left out")
    if found.unpaired:
        note(f"{counted(found.unpaired, 'run')} without a partner left out")
    typer.echo(
        f"smallest detectable loss of the whole build: {found.detectable:.1%} (found in"
        f" {POWER:.0%} of comparisons; at most {FALSE_ALARMS:.0%} of comparisons of equal builds"
        " end with a loss)"
    )
    if found.detectable > WANTED:
        note(
            f"warning: too noisy to see a loss of {WANTED:.0%}; about"
            f" {found.pairs_needed()} pairs would do"
        )
    for cell in found.failures:
        typer.echo(f"LOSS: more requests of {cell} fail than in BASE")
    for row in found.lost:
        typer.echo(f"LOSS: {row.measure.name}, {row.cell}: {row.change:+.1%}")
    if not found.worse:
        typer.echo("no loss found")


def _cells(row: RegressRow) -> list[str]:
    verdict = "LOSS" if row.lost else "gain" if row.gained else "no change shown"
    sign = "-" if row.measure.more_is_better else "+"
    return [row.measure.name, row.cell, str(row.pairs), f"{1 + row.change:.3f}",
            f"{1 + row.low:.3f} to {1 + row.high:.3f}", f"{row.confidence:.1%}",
            f"{sign}{row.detectable:.1%}", verdict]  # fmt: skip


def _document(found: Comparison) -> dict[str, Any]:
    return {
        "loss": found.worse,
        "smallest_detectable_loss": found.detectable,
        "failures": found.failures,
        "pairs_left_out": found.left_out,
        "runs_without_partner": found.unpaired,
        "rows": [
            {
                "measure": row.measure.name,
                "cell": row.cell,
                "pairs": row.pairs,
                "change": row.change,
                "low": row.low,
                "high": row.high,
                "ratio": [1 + row.change, 1 + row.low, 1 + row.high],
                "confidence": row.confidence,
                "more_is_better": row.measure.more_is_better,
                "detectable": row.detectable,
                "loss": row.lost,
            }
            for row in found.rows
        ],
    }
