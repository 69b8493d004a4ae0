"""Provide the commands ``jq-bench outages`` and ``jq-bench tables``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobqueue.cli.display import note, print_table, progress
from jobqueue.cli.program import examples, run_async, terminated_like_interrupted
from jobqueue.cli.version import commit
from jobqueue.core.errors import Conflict, NotFound

if TYPE_CHECKING:
    from jobqueue.bench.outages import Outage
    from jobqueue.bench.run import Wish

# Commands import the packages of the extra `bench`, so that the program can name missing ones.
_STALE = 1  # the exit status of a page that is out of date

app = typer.Typer()


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
