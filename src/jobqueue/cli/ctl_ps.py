"""Provide the command ``jq-ctl ps``: it shows the topologies on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import typer

from jobqueue.cli import fleet
from jobqueue.cli.ctl_up import UpFolderOption
from jobqueue.cli.display import note, on_terminal, print_json, print_table
from jobqueue.cli.program import clean, examples, run_async
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.core.errors import JobQueueError
from jobqueue.fleet import folders, state
from jobqueue.fleet.state import FleetState, look

_CONDITIONS = {
    "up": "",
    "starting": "",
    "orphaned": "its supervisor has ended, and no process is restarted",
    "stale": "its supervisor and all its processes have ended",
}

app = CtlTyper(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples("jq-ctl ps", "jq-ctl ps --folder ./fleet --output json"))
def ps(chosen: CliSession, folder: UpFolderOption = None) -> None:
    """Show the topologies that `jq-ctl up` has started on this machine, with their health."""
    found = [state.read(folder.resolve())] if folder else _all()
    found = run_async(_look(found))
    if chosen.json:
        print_json({"topologies": [fleet.state_document(one) for one in found]})
        return
    if not found and on_terminal():
        typer.echo("Nothing is up. `jq-ctl up embedded` starts a server.")
    for number, one in enumerate(found):
        if number:
            typer.echo()
        _print(one)


def _all() -> list[FleetState]:
    found = []
    for folder in folders.known(os.environ):
        try:
            found.append(state.read(folder))
        except JobQueueError as error:
            note(f"warning: {error.message}")
    return found


async def _look(states: Sequence[FleetState]) -> list[FleetState]:
    return list(await asyncio.gather(*(look(one) for one in states)))


def _print(one: FleetState) -> None:
    remark = _CONDITIONS[one.condition]
    hint = f": {remark}; `jq-ctl down --folder {one.folder}` cleans up" if remark else ""
    typer.echo(clean(f"{one.topology} in {one.folder} is {one.condition}{hint}"))
    print_table(
        fleet.HEADERS,
        [fleet.cells(row) for row in one.rows],
        "",
        spare=("LAST LINE", "ROLE", "RESTARTS", "UPTIME", "PID"),
        elastic="LAST LINE",
    )
