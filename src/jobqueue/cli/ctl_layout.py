"""Provide the command ``jq-ctl layout``: it shows or sets the layout of a PostgreSQL store."""

from __future__ import annotations

from typing import Annotated

import typer

from jobqueue.cli.display import print_json
from jobqueue.cli.program import examples, run_async
from jobqueue.cli.session import OutputOption, session
from jobqueue.connect.extras import needed_by
from jobqueue.connect.urls import parse_url, with_password
from jobqueue.core.errors import InvalidArgument

EXAMPLES = examples(
    "jq-ctl --url postgresql://jobs@db/jobs layout",
    "jq-ctl --url postgresql://jobs@db/jobs layout 2   [dim](no older server runs)[/dim]",
    "jq-ctl --url postgresql://jobs@db/jobs layout 1   [dim](before an older server starts)[/dim]",
)

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=EXAMPLES)
def layout(
    context: typer.Context,
    number: Annotated[
        int | None,
        typer.Argument(help="The new layout. Without a number, show the layout."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Show, raise or lower the layout of a PostgreSQL store: the form in which servers write jobs.

    Raise the layout when no server of an earlier version runs any more: from then on such a server
    cannot write. Lower the layout before you go back to an earlier version: the command rewrites
    the rows that the earlier version cannot read, a thousand jobs at a time. Servers may run
    meanwhile.
    """
    known = session(context)
    if parse_url(known.url, "--url").scheme != "postgresql":
        raise InvalidArgument(
            "--url", "must name a store on PostgreSQL: no other store has layouts"
        )
    with needed_by("--url", "asyncpg"):
        from jobqueue.stores.postgres.migrate import layout_of
    found = run_async(layout_of(with_password(known.url, known.db_password), number))
    if known.json:
        print_json({"layout": found})
    else:
        typer.echo(f"layout {found}")
