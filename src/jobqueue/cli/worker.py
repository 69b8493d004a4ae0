"""Provide the program ``jq-worker``: it reads settings and runs a worker process."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from jobqueue import config, logs
from jobqueue.access.files import environment_secret
from jobqueue.cli.appload import load_app
from jobqueue.cli.program import (
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
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
from jobqueue.connect.starting import STOPPED_EARLY, drains, started
from jobqueue.core.errors import InvalidArgument
from jobqueue.server import security

if TYPE_CHECKING:
    from jobqueue.client.app import JobQueue
    from jobqueue.server.worker import WorkerProcess

log = logging.getLogger("jobqueue.worker")
SERVICE = "jq-worker"
EXIT_UNFINISHED = 1  # jobs were still running when the shutdown time was up
EXIT_EXHAUSTED = 75  # no slot was left: the worker has to be started again
FLAGS = [
    text_flag(
        "worker.server",
        "The jq-server, or several with commas between them. Default: 127.0.0.1:50051.",
        "--server",
        metavar="HOST:PORT,...",
    ),
    text_flag(
        "url",
        "Open a store without a server: sqlite:///FILE, postgresql://… or redis://…",
        metavar="URL",
    ),
    text_flag(
        "worker.queues",
        "Queues to take jobs from; * = all. Default: the queues that the app's tasks declare,"
        " or `default`.",
        "--queues",
    ),
    text_flag("worker.concurrency", "Jobs to run at once.", "--concurrency"),
    text_flag("worker.id", "Name of this worker. Default: host name and pid.", "--id"),
    text_flag("worker.app", "The JobQueue with the tasks.", "--app", metavar="MODULE:ATTRIBUTE"),
    text_flag(
        "exec",
        "Run this program for every job: it gets the payload on stdin, writes the result to"
        " stdout, and its exit status is the outcome.",
        metavar="COMMAND",
    ),
    text_flag(
        "worker.metrics_port", "Port of /metrics; 0 = none. Default: 9464.", "--metrics-port"
    ),
    ("tls.ca", TlsCaOption),
    ("tls.cert", TlsCertOption),
    ("tls.key", TlsKeyOption),
    *LOG_FLAGS,
]

app = typer.Typer(name=SERVICE, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(epilog=examples(
    "jq-worker --server 127.0.0.1:50051 --queues mail,default --concurrency 8 --app tasks:app",
    "jq-worker --queues images --exec './resize.sh --fast'",
    "jq-worker --url sqlite:///data/jobqueue.db --queues default",
))  # fmt: skip
@with_options(FLAGS, into="flags")
def work(
    *,
    config_file: ConfigOption = None,
    flags: dict[str, str],
    sets: SetOption = None,
    version: VersionOption = False,
) -> int:
    """Take jobs from queues and run them. After SIGTERM, the worker exits when its jobs have ended.

    Settings come from the YAML file, then JQ_ environment variables, then flags; the last wins.
    The worker sends the key in the environment variable JQ_API_KEY, or in the file that
    JQ_API_KEY_FILE names, to the server.
    """
    url, exec_ = flags.pop("url", None), flags.pop("exec", None)
    loaded = config.load(config_file, os.environ, {**flags, **parse_sets(sets)})
    settings = loaded.settings
    if settings.worker.concurrency < 1:
        raise InvalidArgument("worker.concurrency", "must be 1 or more for a jq-worker")
    if flags.get("worker.server") and url:
        raise InvalidArgument("--server", "give either --server or --url, not both")
    command = _command(exec_)
    if command and settings.worker.app:
        raise InvalidArgument("--exec", "give either --exec or --app, not both")
    if command and shutil.which(command[0]) is None:
        raise InvalidArgument(
            "--exec",
            f"there is no program {command[0]!r}, neither in PATH nor relative to {Path.cwd()}",
        )
    user_app = load_app(settings.worker.app) if settings.worker.app else None
    logs.configure(SERVICE, settings.log.level, settings.log.format)
    for warning in loaded.warnings:
        log.warning(warning)
    chosen_url = url or _url(loaded, user_app)
    chosen_queues = _queues(loaded, user_app, command)
    credentials = security.credentials(settings, environment_secret(os.environ, "JQ_API_KEY"))
    if credentials is None and user_app is not None and chosen_url == user_app.url:
        credentials = user_app.credentials
    redis_url = settings.redis.url
    if not redis_url and user_app is not None and chosen_url == user_app.url:
        redis_url = user_app.redis_url

    async def body(stop: asyncio.Event) -> int:
        from jobqueue.server.worker import WorkerProcess

        registry = user_app.registry if user_app else None
        worker = WorkerProcess(
            settings,
            chosen_url,
            queues=chosen_queues,
            registry=registry,
            exec_command=command,
            credentials=credentials,
            redis_url=redis_url,
        )
        return await _run(worker, stop)

    return run_service(body, log, drains(settings.worker.shutdown_timeout))


def _command(text: str | None) -> list[str] | None:
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidArgument("--exec", f"{text!r} is not a valid command: {error}") from None
    if not words:
        raise InvalidArgument("--exec", "must name a program")
    return words


def _url(loaded: config.Loaded, user_app: JobQueue | None) -> str:
    """Return the URL in the settings, else the application's URL, else the default server's URL.

    An application's URL memory:// does not count: another process cannot reach its jobs.
    """
    given = loaded.settings.worker.server
    unsaid = "worker.server" not in loaded.sources
    if unsaid and user_app is not None and not user_app.url.startswith("memory:"):
        return user_app.url
    return given if "://" in given else f"grpc://{given}"


def _queues(
    loaded: config.Loaded, user_app: JobQueue | None, command: list[str] | None
) -> Sequence[str]:
    """Return the queues from which the worker takes jobs.

    With ``command``, the program of ``--exec``, these are only the queues in the settings, because
    the program cannot execute the jobs of taskqueue.v1. Otherwise see ``options.queues``.
    """
    from jobqueue.server import options

    if command:
        return loaded.settings.worker.queues
    return options.queues(loaded.settings, None if user_app is None else user_app.registry)


async def _run(worker: WorkerProcess, stop: asyncio.Event) -> int:
    stopping = asyncio.create_task(stop.wait())
    try:
        if not await started(worker.start(), stop):
            log.info(STOPPED_EARLY)
            return 0
        ended = asyncio.create_task(worker.runtime.finished)
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
    finally:
        stopping.cancel()
        await worker.stop()
    if worker.runtime.exhausted:
        return EXIT_EXHAUSTED
    return EXIT_UNFINISHED if worker.unended else 0


def run(argv: Sequence[str] | None = None) -> int:
    """Run jq-worker with the given arguments, or those of this process; return the exit status."""
    return run_program(app, SERVICE, argv)


if __name__ == "__main__":
    sys.exit(run())
