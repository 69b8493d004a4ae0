"""Provide the commands report, pairs, regress, outages and tables of ``jq-bench``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobqueue.cli.display import counted, note, print_json, print_table, progress
from jobqueue.cli.program import examples, run_async, terminated_like_interrupted
from jobqueue.cli.session import Format, OutputOption
from jobqueue.cli.version import commit
from jobqueue.core.errors import Conflict, InvalidArgument, NotFound

if TYPE_CHECKING:
    from jobqueue.bench.outages import Outage
    from jobqueue.bench.regress import Comparison, RegressRow
    from jobqueue.bench.run import Wish

# Commands import the packages of the extra `bench`, so that the program can name missing ones.
PAIRS = 24  # the default, with which regress finds a loss of 15 % on a noisy machine
_LOST = 1  # the exit status of a loss
_STALE = 1  # the exit status of a page that is out of date

app = typer.Typer()


@app.command(
    epilog=examples(
        "jq-bench report results/parity",
        "jq-bench report results/processes results/containers --into results/overlay",
    )
)
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="A folder of results, or several folders"
                                   " to show together.")
    ],
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the report. Default: the only folder DIR."),
    ] = None,
) -> None:  # fmt: skip
    """Make summary.csv, report.html and report.md from results; print the path of report.html."""
    from jobqueue.bench.report.writing import write

    if into is None and len(folders) > 1:
        raise InvalidArgument("--into", "must name a folder for the report of several folders")
    typer.echo(write(folders, into or folders[0]))


@app.command(
    epilog=examples(
        "jq-bench pairs ../before . --into results/pairs",
        "jq-bench regress results/pairs/base results/pairs/new",
    )
)
def pairs(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The older build: a checkout, a"
                                         " virtual environment or a Python program.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The newer build, named likewise.")],
    into: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the folders base and new.")],
    profile: Annotated[
        str, typer.Option(help="The profile: a shipped profile, or the path of a .yml file.")
    ] = "regress",
    count: Annotated[
        int, typer.Option("--pairs", min=5, max=1000, help="How often each build is measured.")
    ] = PAIRS,
) -> None:  # fmt: skip
    """Measure two builds alternately, each with its own jq-bench; print how to compare them."""
    from jobqueue.bench import pairs as runs

    builds = runs.build("BASE", base), runs.build("NEW", new)
    with progress("runs", 2 * count) as bar:
        runs.run(*builds, profile, count, into, bar.advance)
    typer.echo(f"jq-bench regress {into / runs.BASE} {into / runs.NEW}")


@app.command(epilog=examples("jq-bench regress results/pairs/base results/pairs/new"))
def regress(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="A folder of results.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The folder of the newer results.")],
    output: OutputOption = None,
) -> None:
    """Compare the results NEW with the results BASE. Exit with 1 if NEW is worse.

    The first run of NEW is compared with the first run of BASE, and so on. The two runs of a pair
    must have run one directly after the other: measure with jq-bench pairs.
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
        note(f"{counted(found.left_out, 'pair')} left out, because a run was disturbed")
    if found.unpaired:
        note(f"{counted(found.unpaired, 'run')} left out, because the other run is missing")
    typer.echo(
        f"smallest detectable loss of the whole build: {found.detectable:.1%} (found in"
        f" {POWER:.0%} of comparisons; at most {FALSE_ALARMS:.0%} of comparisons of equal builds"
        " end with a loss)"
    )
    if found.detectable > WANTED:
        note(
            f"warning: too noisy to find a loss of {WANTED:.0%}; that needs about"
            f" {found.pairs_needed()} pairs"
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


@app.command(epilog=examples("jq-bench outages", "jq-bench outages --rate 100 --seconds 10"))
def outages(
    rate: Annotated[float, typer.Option(min=1, max=10_000, help="Requests a second.")] = 60.0,
    seconds: Annotated[
        float, typer.Option(min=0.5, max=3600, help="Seconds before each kill, and after it.")
    ] = 4.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the result.")] = Path(
        "results/outages"
    ),
) -> None:
    """Kill each service and a node under load, and count the answered calls and the ended jobs.

    A killed process is not started again, so that the result shows what the other processes can do
    without it.
    """
    from jobqueue.bench import outages as measured
    from jobqueue.bench.run import Wish

    if (out / measured.FILE).exists():
        raise Conflict(f"--out: {out} has the result of an earlier run; choose another folder")
    wish = Wish(
        profile=measured.profile(rate, seconds),
        out=out,
        commit=commit(),
        command=shlex.join(["jq-bench", *sys.argv[1:]]),
    )
    with terminated_like_interrupted():
        found = run_async(_measured(wish))
    rows = [
        [one.topology, one.killed, f"{one.answered():.0%}", f"{one.accepted:,}", f"{one.open:,}"]
        for one in found
    ]
    headers = ["TOPOLOGY", "KILLED", "ANSWERED MEANWHILE", "JOBS ACCEPTED", "END NOT SEEN"]
    print_table(headers, rows, "nothing was killed")
    note(f"the result was written to {out / measured.FILE}")


async def _measured(wish: Wish) -> list[Outage]:
    from jobqueue.bench import outages as measured
    from jobqueue.bench.run import environment_of

    wish.out.mkdir(parents=True, exist_ok=True)
    environment = environment_of(wish)
    found = []
    with progress("killing", measured.runs()) as bar:
        async for one in measured.outages(wish.profile):
            found.append(one)
            bar.advance()
    document = {"environment": environment, "outages": [one.as_json() for one in found]}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (wish.out / measured.FILE).write_text(text + "\n", encoding="utf-8")
    return found


@app.command(
    epilog=examples("jq-bench tables docs/evaluation.md", "jq-bench tables --check docs/*.md")
)
def tables(
    pages: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Markdown files.")],
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder that the paths in a page start from.")
    ] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if a table is out of date.")
    ] = False,
) -> None:
    """Write the tables in Markdown pages again, from stored results.

    A table begins with the line <!-- jq-bench: NAME FOLDER --> and ends with <!-- end -->.
    """
    from jobqueue.bench.report.tables import render

    stale = []
    for page in pages:
        try:
            before = page.read_text(encoding="utf-8")
        except OSError as error:
            raise NotFound(f"cannot read {page}: {error.strerror}") from error
        made = render(before, root)
        if made != before:
            stale.append(page)
            if not check:
                page.write_text(made, encoding="utf-8")
    for page in stale:
        note(
            f"{page} is out of date; to write its tables again, run: jq-bench tables {page}"
            if check
            else f"wrote the tables in {page} again"
        )
    if check and stale:
        raise typer.Exit(_STALE)
