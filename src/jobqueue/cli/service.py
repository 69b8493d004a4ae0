"""Provide the program ``jq-service``: it runs a service that docs/taskqueue.md describes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from jobqueue import logs
from jobqueue.cli.display import print_json, print_table
from jobqueue.cli.program import VersionOption, examples, run_program, run_service
from jobqueue.cli.session import Format, OutputOption
from jobqueue.taskqueue.designs.catalogue import SERVICES, Service
from jobqueue.taskqueue.designs.settings import SharedVariables, Variable, texts_of

log = logging.getLogger("jobqueue.services")
PROGRAM = "jq-service"
FIELDS = ("method", "event")  # of every log line, beside the fields of all programs

_EXAMPLES = {
    "gateway": "JOB_SERVICE_ADDR=job:50052 QUEUE_SERVICE_ADDR=queue:50053"
    " RESULT_SERVICE_ADDR=result:50055 jq-service gateway",
    "coordinator": "JOB_SERVICE_ADDR=job:50052 QUEUE_SERVICE_ADDR=queue:50053"
    " RESULT_SERVICE_ADDR=result:50055 jq-service coordinator",
    "worker": "COORDINATOR_ADDR=coordinator:50054 WORKER_SLOTS=6 jq-service worker",
    "node": "NODES=node-0:50051,node-1:50051 NODE_INDEX=0 jq-service node",
}

app = typer.Typer(
    name=PROGRAM,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    epilog=examples(
        "jq-service job",
        _EXAMPLES["worker"],
        "jq-service gateway --check --output json",
        "jq-ctl up microservices",
    ),
)

CheckOption = Annotated[
    bool, typer.Option("--check", help="Check and print the environment's settings, and exit.")
]


@app.callback()
def services(version: VersionOption = False) -> None:
    """Run a service of the task queue. A system is six different services, or several equal nodes.

    A service reads its settings from environment variables, and logs JSON lines. After SIGTERM it
    accepts no more calls, finishes the calls under way, and exits.
    """


def _command(service: Service[Any]) -> Callable[..., int]:
    def serve(check: CheckOption = False, output: OutputOption = None) -> int:
        settings = service.read(os.environ)
        if check:
            if output is Format.JSON:
                print_json(dict(texts_of(settings)))
            else:
                print_table(("VARIABLE", "VALUE"), [list(pair) for pair in texts_of(settings)], "")
            return 0
        level, form = settings.log_level.lower(), settings.log_format.lower()
        logs.configure(service.name, level, form, always=FIELDS)
        return run_service(lambda stop: _run(service, settings, stop), log)

    return serve


async def _run(service: Service[Any], settings: SharedVariables, stop: asyncio.Event) -> int:
    from jobqueue.taskqueue.designs.wiring import DIRECT, PROGRAMS  # gRPC: not for --help

    async with PROGRAMS[service.name](settings, DIRECT):
        await stop.wait()
    return 0


def _epilog(service: Service[Any]) -> str:
    lines = ["[bold]Environment[/bold]", *(escape(_line(one)) for one in service.all_variables)]
    shown = _EXAMPLES.get(service.name, f"{PROGRAM} {service.name}")
    return "\n\n".join([*lines, examples(shown, f"{PROGRAM} {service.name} --check")])


def _line(variable: Variable) -> str:
    return f"  {variable.name} ({said_default(variable)}): {variable.meaning}"


def said_default(variable: Variable) -> str:
    """Return "required" if the variable must be set, else a text with its default."""
    if variable.required:
        return "required"
    return f"default {variable.default or variable.fallback}"


for _service in SERVICES.values():
    app.command(_service.name, help=_service.about, epilog=_epilog(_service))(_command(_service))


def run(argv: Sequence[str] | None = None) -> int:
    """Run jq-service with the given arguments, or those of this process; return the exit status."""
    return run_program(app, PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(run())
