"""Provide the command ``jq-ctl down``: it stops a topology that ``jq-ctl up`` started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from jobqueue.cli.ctl_up import UpFolderOption
from jobqueue.cli.display import note, print_json
from jobqueue.cli.program import clean, examples
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.core.errors import Conflict, NotFound
from jobqueue.documents import Document
from jobqueue.fleet import folders, state

app = CtlTyper(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples(
    "jq-ctl down", "jq-ctl down --folder ./fleet --remove-data", "jq-ctl down --all"
))  # fmt: skip
def down(
    chosen: CliSession,
    folder: UpFolderOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Stop every topology that is up.")] = False,
    keep_data: Annotated[
        bool,
        typer.Option(
            "--keep-data/--remove-data",
            help="Keep the jobs and logs in the folder, or delete the folder.",
        ),
    ] = True,
    within: Annotated[
        float,
        typer.Option(
            min=0, max=3600, metavar="SECONDS", help="Kill the processes that run after this time."
        ),
    ] = 120.0,
) -> None:
    """Stop a topology: workers first, then servers, then services.

    If the topology's supervisor was killed, stop the processes that it left.
    """
    ended: list[Document] = []
    for home in _homes(folder, all_):
        try:
            found = state.read(home)
        except NotFound:
            if keep_data or not folders.remove(home):
                raise
            ended.append({"folder": str(home), "was": "down", "killed": [], "data_kept": False})
            if not chosen.json:
                typer.echo(clean(f"the data in {home} is removed"))
            continue
        condition = found.condition
        killed = state.take_down(found, os.environ, within)
        if not keep_data:
            folders.remove(home)
        ended.append({"topology": found.topology, "folder": str(home), "was": condition,
                      "killed": killed, "data_kept": keep_data})  # fmt: skip
        if killed:
            note(f"warning: killed, because they still ran after {within:g} s: {', '.join(killed)}")
        if not chosen.json:
            typer.echo(clean(f"{found.topology} in {home} is down (it was {condition})"))
    if chosen.json:
        print_json({"down": ended})


def _homes(folder: Path | None, all_: bool) -> list[Path]:
    if folder:
        return [folder.resolve()]
    known = [home for home in folders.known(os.environ) if (home / folders.STATE).exists()]
    if not known and not all_:
        raise NotFound(
            "found no topology that is up; if one runs in another folder, name it with --folder"
        )
    if len(known) > 1 and not all_:
        named = "\n".join(f"  jq-ctl down --folder {home}" for home in known)
        raise Conflict(f"several topologies are up; choose one, or give --all:\n{named}")
    return known
