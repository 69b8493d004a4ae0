"""Provide the command ``jq-ctl layout``: it shows or sets the layout of a PostgreSQL store."""

from __future__ import annotations

from typing import Annotated

import typer

from jobqueue.cli.program import examples, run_async
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.connect.extras import needed_by
from jobqueue.connect.urls import parse_url, with_password
from jobqueue.core.errors import InvalidArgument

app = CtlTyper(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples(
    "jq-ctl --url postgresql://jobs@db/jobs layout",
    "jq-ctl --url postgresql://jobs@db/jobs layout 3   [dim](no older server runs)[/dim]",
    "jq-ctl --url postgresql://jobs@db/jobs layout 1   [dim](before an older server starts)[/dim]",
))  # fmt: skip
def layout(
    chosen: CliSession,
    number: Annotated[
        int | None,
        typer.Argument(help="The new layout. Without a number, show the layout."),
    ] = None,
) -> None:
    """Show, raise or lower the layout of a PostgreSQL store: the form in which servers write jobs.

    Raise the layout when no server of an earlier version runs any more: from then on such a server
    cannot write. Lower the layout before you go back to an earlier version: the command rewrites
    the rows that the earlier version cannot read, a thousand jobs at a time. Servers may run
    meanwhile.
    """
    if parse_url(chosen.url, "--url").scheme != "postgresql":
        raise InvalidArgument(
            "--url", "must name a store on PostgreSQL: no other store has layouts"
        )
    with needed_by("--url", "asyncpg"):
        from jobqueue.stores.postgres.migrate import layout_of
    found = run_async(layout_of(with_password(chosen.url, chosen.db_password), number))
    chosen.tell({"layout": found}, f"layout {found}")
