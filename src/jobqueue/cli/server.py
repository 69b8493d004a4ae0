"""``jq-server``: flags, settings, start, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from jobqueue import config, logs
from jobqueue.cli.appload import load_registry
from jobqueue.cli.program import VersionOption, examples, run_program, run_service, started
from jobqueue.cli.setting_flags import SetOption, parse_sets

log = logging.getLogger("jobqueue.server")
SERVICE = "jq-server"

app = typer.Typer(name=SERVICE, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=examples(
    "jq-server",
    "jq-server --config server.yaml --dry-run",
    "jq-server --db-url memory:// --http-port 8000 --worker-concurrency 16",
    "jq-server --app tasks:app --set queue.max_retries=5",
))  # fmt: skip
def serve(
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.")
    ] = None,
    db_url: Annotated[
        str | None,
        typer.Option(
            help="Where jobs are kept: memory://, sqlite:///FILE,"
            " postgresql://USER@HOST:PORT/DATABASE or redis://HOST:PORT/NUMBER."
        ),
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Redis for servers that share a PostgreSQL.")
    ] = None,
    kafka_bootstrap: Annotated[
        str | None, typer.Option(help="Kafka for the event stream, as HOST:PORT.")
    ] = None,
    http_host: Annotated[str | None, typer.Option(help="Address that HTTP listens on.")] = None,
    http_port: Annotated[str | None, typer.Option(help="Port of HTTP.")] = None,
    grpc_host: Annotated[str | None, typer.Option(help="Address that gRPC listens on.")] = None,
    grpc_port: Annotated[str | None, typer.Option(help="Port of gRPC.")] = None,
    worker_concurrency: Annotated[
        str | None, typer.Option(help="Jobs the built-in pool runs at once; 0 = no pool.")
    ] = None,
    worker_queues: Annotated[
        str | None, typer.Option(help="Queues of the built-in pool, separated by commas; * = all.")
    ] = None,
    app_reference: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:ATTRIBUTE", help="Task handlers for the pool."),
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="With kafka.dispatch: all, api or scheduler.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="A set of defaults: default, producer or streaming.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[
        str | None,
        typer.Option(help="auto, json or text. Default: auto: text on a terminal, else JSON."),
    ] = None,
    sets: SetOption = None,
    dry_run_: Annotated[
        bool,
        typer.Option("--dry-run", help="Check settings and connections, print them, and exit."),
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
    logs.configure(SERVICE, settings.log.level, settings.log.format)
    for warning in loaded.warnings:
        log.warning(warning)
    at_stop = (
        f"stopping: it takes no more calls, and waits up to {settings.server.shutdown_timeout:g} s"
        " for the jobs of its own pool; a second Ctrl-C or SIGTERM ends it at once"
    )
    return run_service(lambda stop: _run(settings, stop), log, at_stop)


async def _run(settings: config.Settings, stop: asyncio.Event) -> int:
    from jobqueue.topology.embedded import Embedded

    server = Embedded(settings, registry=load_registry(settings.worker.app))
    if not await started(server.start(), stop):
        return 0
    try:
        await stop.wait()
    finally:
        await server.stop()
    return 0


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    return run_program(app, SERVICE, argv)


def main() -> None:
    """The entry point."""
    sys.exit(run())


if __name__ == "__main__":
    main()
