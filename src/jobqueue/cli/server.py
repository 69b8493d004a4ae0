"""Provide the program ``jq-server``: it reads settings, and runs or migrates a server."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from jobqueue import config, logs
from jobqueue.cli.appload import load_registry
from jobqueue.cli.program import VersionOption, examples, run_program, run_service
from jobqueue.cli.setting_flags import SetOption, parse_sets, setting_option
from jobqueue.cli.version import full_version
from jobqueue.connect.starting import STOPPED_EARLY, started, when_reached
from jobqueue.core.errors import Unavailable

log = logging.getLogger("jobqueue.server")
SERVICE = "jq-server"
_FILES = 65_536

app = typer.Typer(name=SERVICE, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=examples(
    "jq-server",
    "jq-server --config server.yaml --dry-run",
    "jq-server --db-url memory:// --http-port 8000 --worker-concurrency 16",
    "jq-server --app tasks:app --set queue.max_retries=5",
    "jq-server --db-url postgresql://jq@db/jq --migrate",
))  # fmt: skip
def serve(
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.")
    ] = None,
    db_url: Annotated[
        str | None,
        setting_option(
            "db.url",
            about="URL of the store of jobs: memory://, sqlite:///FILE,"
            " postgresql://USER@HOST:PORT/DATABASE or redis://HOST:PORT/NUMBER.",
            metavar="URL",
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        setting_option(
            "redis.url", about="Redis for servers that share a PostgreSQL.", metavar="URL"
        ),
    ] = None,
    kafka_bootstrap: Annotated[
        str | None,
        setting_option(
            "kafka.bootstrap", about="Kafka for the event stream.", metavar="HOST:PORT,..."
        ),
    ] = None,
    http_host: Annotated[
        str | None,
        setting_option("http.host", about="Address that HTTP listens on.", metavar="HOST"),
    ] = None,
    http_port: Annotated[
        str | None, setting_option("http.port", about="Port of HTTP; 0 = any free port.")
    ] = None,
    grpc_host: Annotated[
        str | None,
        setting_option("grpc.host", about="Address that gRPC listens on.", metavar="HOST"),
    ] = None,
    grpc_port: Annotated[
        str | None, setting_option("grpc.port", about="Port of gRPC; 0 = any free port.")
    ] = None,
    worker_concurrency: Annotated[
        str | None,
        setting_option(
            "worker.concurrency", about="Jobs the built-in pool runs at once; 0 = no pool."
        ),
    ] = None,
    worker_queues: Annotated[
        str | None, setting_option("worker.queues", about="Queues of the built-in pool; * = all.")
    ] = None,
    app_reference: Annotated[
        str | None,
        setting_option(
            "worker.app", "--app", about="Task handlers for the pool.", metavar="MODULE:ATTRIBUTE"
        ),
    ] = None,
    role: Annotated[
        str | None, setting_option("server.role", about="With kafka.dispatch: the server's part.")
    ] = None,
    profile: Annotated[str | None, setting_option("profile", about="A set of defaults.")] = None,
    log_level: Annotated[
        str | None, setting_option("log.level", about="Least severe messages that are logged.")
    ] = None,
    log_format: Annotated[
        str | None,
        setting_option("log.format", about="auto is text on a terminal, JSON elsewhere."),
    ] = None,
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
    flags = {
        "db.url": db_url,
        "redis.url": redis_url,
        "kafka.bootstrap": kafka_bootstrap,
        "http.host": http_host,
        "http.port": http_port,
        "grpc.host": grpc_host,
        "grpc.port": grpc_port,
        "worker.concurrency": worker_concurrency,
        "worker.queues": worker_queues,
        "worker.app": app_reference,
        "server.role": role,
        "profile": profile,
        "log.level": log_level,
        "log.format": log_format,
        **parse_sets(sets),
    }
    loaded = config.load(config_file, os.environ, flags)
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
    return run_service(lambda stop: _run(settings, stop), log, at_stop)


def _allow_files() -> None:
    """Raise the process's limit of open files, as far as the system allows.

    Each connection is an open file. The usual limit of 1,024 is for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(settings: config.Settings, stop: asyncio.Event) -> int:
    from jobqueue.server.process import ServerProcess

    registry = load_registry(settings.worker.app)
    server = ServerProcess(settings, registry=registry, version=full_version())
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


def main() -> None:
    """Run jq-server with the arguments of this process, and exit."""
    sys.exit(run())


if __name__ == "__main__":
    main()
