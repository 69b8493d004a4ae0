"""Provide the program ``jq-server``: it reads settings, and runs or migrates a server."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from jobqueue import config, logs
from jobqueue.cli.appload import load_registry
from jobqueue.cli.program import (
    VersionOption,
    examples,
    run_program,
    run_service,
    with_options,
)
from jobqueue.cli.setting_flags import (
    LOG_FLAGS,
    ConfigOption,
    SetOption,
    parse_sets,
    text_flag,
)
from jobqueue.cli.version import full_version
from jobqueue.connect.starting import STOPPED_EARLY, started, when_reached
from jobqueue.core.errors import Unavailable

log = logging.getLogger("jobqueue.server")
SERVICE = "jq-server"
_FILES = 65_536
FLAGS = [
    text_flag(
        "db.url",
        "URL of the store of jobs: memory://, sqlite:///FILE,"
        " postgresql://USER@HOST:PORT/DATABASE or redis://HOST:PORT/NUMBER.",
        metavar="URL",
    ),
    text_flag("redis.url", "Redis for servers that share a PostgreSQL.", metavar="URL"),
    text_flag("kafka.bootstrap", "Kafka for the event stream.", metavar="HOST:PORT,..."),
    text_flag("http.host", "Address that HTTP listens on.", metavar="HOST"),
    text_flag("http.port", "Port of HTTP; 0 = any free port."),
    text_flag("grpc.host", "Address that gRPC listens on.", metavar="HOST"),
    text_flag("grpc.port", "Port of gRPC; 0 = any free port."),
    text_flag("worker.concurrency", "Jobs the built-in pool runs at once; 0 = no pool."),
    text_flag("worker.queues", "Queues of the built-in pool; * = all."),
    text_flag("worker.app", "Task handlers for the pool.", "--app", metavar="MODULE:ATTRIBUTE"),
    text_flag("server.role", "With kafka.dispatch: the server's part.", "--role"),
    text_flag("profile", "A set of defaults."),
    *LOG_FLAGS,
]

app = typer.Typer(name=SERVICE, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=examples(
    "jq-server",
    "jq-server --config server.yaml --dry-run",
    "jq-server --db-url memory:// --http-port 8000 --worker-concurrency 16",
    "jq-server --app tasks:app --set queue.max_retries=5",
    "jq-server --db-url postgresql://jq@db/jq --migrate",
))  # fmt: skip
@with_options(FLAGS, into="flags")
def serve(
    *,
    config_file: ConfigOption = None,
    flags: dict[str, str],
    sets: SetOption = None,
    dry_run_: Annotated[
        bool,
        typer.Option("--dry-run", help="Check settings and connections, print them, and exit."),
    ] = False,
    migrate: Annotated[
        bool,
        typer.Option("--migrate", help="Bring the store's schema up to date, and exit."),
    ] = False,
    version: VersionOption = False,
) -> int:
    """Run a job queue server: store, scheduler, HTTP and gRPC APIs, and a worker pool.

    Settings come from the YAML file, then JQ_ environment variables, then flags; the last wins.
    """
    loaded = config.load(config_file, os.environ, {**flags, **parse_sets(sets)})
    if dry_run_:
        from jobqueue.cli.dryrun import dry_run

        return dry_run(loaded)
    settings = loaded.settings
    logs.configure(
        SERVICE, settings.log.level, settings.log.format, audit_file=settings.log.audit_file
    )
    for warning in loaded.warnings:
        log.warning(warning)
    if migrate:
        return run_service(lambda stop: _migrate(settings, stop), log, "stopping")
    at_stop = (
        "stopping: the server accepts no more calls, and waits up to"
        f" {settings.server.shutdown_timeout:g} s for the jobs of its own pool and of workers that"
        " are also stopping; a second Ctrl-C or SIGTERM ends it at once"
    )
    _allow_files()
    return run_service(lambda stop: _run(loaded, stop), log, at_stop)


def _allow_files() -> None:
    """Raise the process's limit of open files, as far as the system allows.

    Each connection is an open file. The usual limit of 1,024 is for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(loaded: config.Loaded, stop: asyncio.Event) -> int:
    from jobqueue.server.process import ServerProcess

    settings = loaded.settings
    registry = load_registry(settings.worker.app)
    server = ServerProcess(
        settings, registry=registry, version=full_version(), sources=loaded.sources
    )
    if not await started(server.start(), stop):
        log.info(STOPPED_EARLY)
        return 0
    try:
        await stop.wait()
    finally:
        await server.stop()
    return 0


async def _migrate(settings: config.Settings, stop: asyncio.Event) -> int:
    """Migrate the store's schema: open the store like a server, and close it."""
    from jobqueue.connect.backends import create_store
    from jobqueue.redaction import redact
    from jobqueue.server import options

    store = create_store(options.db_url(settings), field="db.url")
    try:
        if not await started(when_reached(store.open, settings.db.start_timeout, log), stop):
            raise Unavailable(
                "the migration was stopped before the schema was up to date: run --migrate again"
            )
    finally:
        await store.close()
    log.info("the schema of %s is up to date", redact(settings.db.url))
    return 0


def run(argv: Sequence[str] | None = None) -> int:
    """Run jq-server with the given arguments, or those of this process; return the exit status."""
    return run_program(app, SERVICE, argv)


if __name__ == "__main__":
    sys.exit(run())
