"""Provide the command ``jq-ctl up``: it starts a topology on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from jobqueue import config
from jobqueue.cli import fleet, fleet_view
from jobqueue.cli.display import note, print_json
from jobqueue.cli.program import EXIT_INTERRUPTED, examples, run_async, with_options
from jobqueue.cli.session import CliSession, CtlTyper
from jobqueue.cli.setting_flags import SetOption, parse_sets, text_flag
from jobqueue.core.errors import InvalidArgument
from jobqueue.fleet import folders, services, state
from jobqueue.fleet.keeper import Restarts
from jobqueue.fleet.layout import Layout, UpRequest
from jobqueue.fleet.ports import Ports
from jobqueue.fleet.supervisor import Ending, PortTaken, Supervisor, launch
from jobqueue.fleet.topologies import LAYOUTS, SERVER

_PORT_TRIES = 3
FLAGS = [
    text_flag("worker.concurrency", "Number of jobs that a worker runs at once.", "--concurrency"),
    text_flag("worker.app", "The JobQueue with the tasks.", "--app", metavar="MODULE:ATTRIBUTE"),
    text_flag("worker.queues", "Queues to take jobs from; * = all.", "--queues"),
]

FolderOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for data, logs and state. Default: a folder for each topology below"
        " $XDG_STATE_HOME or ~/.local/state (root: /var/lib).",
    ),
]

# The option of commands for a running topology.
UpFolderOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="The folder that the topology was started in. Default: search for it."
    ),
]

app = CtlTyper(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples(
    "jq-ctl up embedded",
    "jq-ctl up replicated --servers 2 --workers 4 --app tasks:app",
    "jq-ctl up replicated --detach --folder ./fleet --port-base 7000",
    "JQ_DB_URL=postgresql://jq:secret@db/jq jq-ctl up replicated --redis redis://cache:6379",
    "jq-ctl up streaming --workers 4 --app tasks:app",
    "jq-ctl up microservices --port-base 50051",
    "jq-ctl up nodes --nodes 6 --detach",
    "jq-ctl up embedded --set queue.max_retries=5 --set http.port=8080",
))  # fmt: skip
@with_options(FLAGS, into="flags")
def up(
    chosen: CliSession,
    *,
    topology: Annotated[str, typer.Argument(help=f"One of: {', '.join(LAYOUTS)}.")],
    servers: Annotated[int | None, typer.Option(help="How many jq-server. Default: 2.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many jq-worker. Default: 2.")] = None,
    schedulers: Annotated[
        int | None,
        typer.Option(help="How many schedulers, of which one leads. Default: 2."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes. Default: 6.")] = None,
    flags: dict[str, str],
    postgres: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this PostgreSQL, and leave it running. Other users can read a command line:"
            " give a URL with a password in JQ_DB_URL instead. Default: a private PostgreSQL.",
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The same for Redis; or JQ_REDIS_URL."),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The same for Kafka; or JQ_KAFKA_BOOTSTRAP."),
    ] = None,
    folder: FolderOption = None,
    port_base: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Use the ports from PORT on. Default: any free ports."),
    ] = None,
    detach_: Annotated[
        bool, typer.Option("--detach", "-d", help="Continue in the background when all is up.")
    ] = False,
    no_restart: Annotated[
        bool, typer.Option("--no-restart", help="Do not restart a process that ends.")
    ] = False,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="YAML file with settings for all processes."),
    ] = None,
    sets: SetOption = None,
) -> None:
    """Start a topology on this machine as plain processes, with the services that it needs.

    Show a live table of the processes until Ctrl-C. Ctrl-C stops workers first, then servers, then
    services. A second Ctrl-C kills all processes. Data and logs stay in the folder.
    """
    wiring = LAYOUTS.get(topology)
    if wiring is None:
        raise InvalidArgument("TOPOLOGY", f"{topology!r} is unknown; allowed: {', '.join(LAYOUTS)}")
    flags |= parse_sets(sets)
    loaded = config.load(config_file, os.environ, flags)
    home = (folder or folders.default_folder(os.environ, topology)).resolve()
    plan = UpRequest(
        folder=home,
        settings=loaded.settings,
        ports=Ports(port_base),
        flags=flags,
        config_file=config_file.absolute() if config_file else None,
        servers=servers,
        workers=workers,
        postgres=postgres,
        redis=redis,
        kafka=kafka,
        schedulers=schedulers,
        nodes=nodes,
    )
    layout = wiring(plan)
    publishes = any(process.module == SERVER for process in layout.processes)
    services.check(layout.services, streams=publishes and bool(loaded.settings.kafka.bootstrap))
    for warning in loaded.warnings:
        note(f"warning: {warning}")
    restarts = Restarts(allowed=not no_restart)
    for tries_left in reversed(range(1 if port_base else _PORT_TRIES)):
        try:
            return _run(layout, home, restarts, detached=detach_, as_json=chosen.json)
        except PortTaken as error:
            if not tries_left:
                raise
            note(f"warning: {error.message}")
            note("trying again with other ports")
            layout = wiring(plan)


def _run(layout: Layout, home: Path, restarts: Restarts, *, detached: bool, as_json: bool) -> None:
    claim = folders.FolderLock(home)
    state.refuse_orphans(home)
    if detached:
        said_to = _nobody if as_json else note
        found = launch(layout, claim, os.environ, restarts, on_line=said_to)
        if as_json:
            print_json(fleet.state_document(found))
        else:
            fleet_view.print_welcome(found)
        return
    supervisor = Supervisor(layout, claim, os.environ, restarts=restarts)
    if run_async(fleet_view.watch(supervisor, as_json=as_json)) is not Ending.STOPPED:
        raise typer.Exit(EXIT_INTERRUPTED)


def _nobody(line: str) -> None:
    """Ignore a line about a change: with JSON output only the final document is printed."""
