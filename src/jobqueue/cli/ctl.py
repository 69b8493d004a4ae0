"""Provide the program ``jq-ctl``, with which people submit jobs and operate queues."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from jobqueue.access.files import environment_secret
from jobqueue.cli import ctl_dlq, ctl_job, ctl_queue, ctl_schedule, ctl_status, ctl_worker
from jobqueue.cli.display import note
from jobqueue.cli.help_types import name_types
from jobqueue.cli.program import (
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    VersionOption,
    examples,
    run_program,
    wants_json,
)
from jobqueue.cli.session import (
    CliSession,
    Format,
    OutputOption,
    choose_credentials,
    choose_redis,
    choose_url,
    with_session,
)
from jobqueue.cli.version import version_text


class _Commands(TyperGroup):
    """Imports the modules in ``_IMPORTED_LATE`` only when their commands are called.

    These imports take as long as the imports of all other commands together.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _IMPORTED_LATE:
            return super().get_command(ctx, cmd_name)
        return name_types(typer.main.get_command(import_module(_IMPORTED_LATE[cmd_name]).app))


def _named_only() -> None:
    """Stand in for a command whose module is not imported yet, so that its name is known."""


# The environment variables that jq-ctl reads.
_VARIABLES = frozenset(
    {"JQ_API_KEY", "JQ_API_KEY_FILE", "JQ_COMMIT", "JQ_DB_PASSWORD", "JQ_DB_PASSWORD_FILE",
     "JQ_REDIS_PASSWORD", "JQ_REDIS_PASSWORD_FILE", "JQ_REDIS_URL", "JQ_TLS_CA",
     "JQ_TLS_CERT", "JQ_TLS_KEY", "JQ_URL"}
)  # fmt: skip
_IMPORTED_LATE = {
    "events": "jobqueue.cli.ctl_events",
    "layout": "jobqueue.cli.ctl_layout",
    "replay": "jobqueue.cli.ctl_replay",
    "up": "jobqueue.cli.ctl_up",
    "ps": "jobqueue.cli.ctl_ps",
    "down": "jobqueue.cli.ctl_down",
}
app = typer.Typer(
    name="jq-ctl",
    cls=_Commands,
    help="Submit jobs and operate queues. jq-ctl sends the key in the environment variable"
    " JQ_API_KEY, or in the file that JQ_API_KEY_FILE names, to the server; JQ_TLS_CA, JQ_TLS_CERT"
    " and JQ_TLS_KEY give defaults for the --tls flags.",
    epilog=examples(
        "jq-ctl up embedded   [dim](starts a server on this machine)[/dim]",
        "jq-ctl status",
        'jq-ctl job submit default \'{"hello": "world"}\' --type echo --wait',
        "jq-ctl job list --status DEAD_LETTERED --output json",
        "jq-ctl --url sqlite:///data/jobqueue.db queue list   [dim](opens the file itself)[/dim]",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(ctl_job.app, name="job")
app.add_typer(ctl_queue.app, name="queue")
app.add_typer(ctl_schedule.app, name="schedule")
app.add_typer(ctl_worker.app, name="worker")
app.add_typer(ctl_dlq.app, name="dlq")
app.command("explain", epilog=ctl_job.EXPLAIN_EXAMPLES)(with_session(ctl_job.explain))
app.command("status", epilog=ctl_status.EXAMPLES)(with_session(ctl_status.status))
for _name in _IMPORTED_LATE:
    app.command(_name)(_named_only)


@app.callback()
def root(
    context: typer.Context,
    server: Annotated[
        str | None,
        typer.Option(
            help="The jq-server, as HOST:PORT or grpc://HOST:PORT, or several HOST:PORT with"
            " commas between them. Default: 127.0.0.1:50051."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Open a store without a server: sqlite:///FILE, postgresql://USER@HOST/DATABASE or"
            " redis://HOST:PORT/NUMBER (its password: JQ_DB_PASSWORD). The environment variable"
            " JQ_URL gives a default for this or --server."
        ),
    ] = None,
    output: OutputOption = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001, max=86_400, help="Seconds to wait for an answer.", metavar="SECONDS"
        ),
    ] = 10.0,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    version: VersionOption = False,
) -> None:
    """Store the global options in a session, which all commands share."""
    context.obj = CliSession(
        url=choose_url(server, url, os.environ.get("JQ_URL")),
        output=output or Format.TABLE,
        timeout=timeout,
        credentials=choose_credentials(tls_ca, tls_cert, tls_key, os.environ),
        db_password=environment_secret(os.environ, "JQ_DB_PASSWORD"),
        redis_url=choose_redis(os.environ),
    )


def _warn_of_variables(args: Sequence[str]) -> None:
    """Print a warning about each environment variable with an unknown name that begins with JQ_.

    Nothing is printed with JSON output, because programs read stderr. The command ``up`` prints
    its own warnings.
    """
    if wants_json(args) or {"up", "--help", "--version"} & set(args):
        return
    if all(name in _VARIABLES for name in os.environ if name.startswith("JQ_")):
        return
    from jobqueue import config  # takes long to import, and is not needed otherwise

    for warning in config.environment_warnings(os.environ):
        note(f"warning: {warning}")


@app.command("version")
def version_command() -> None:
    """Print the version and the commit of this program; `status` shows the server's version."""
    typer.echo(version_text())


def run(argv: Sequence[str] | None = None) -> int:
    """Run jq-ctl with the given arguments, or those of this process; return the exit status."""
    # jq-ctl prints errors from exceptions; a library's log lines would disturb the output.
    logging.getLogger().addHandler(logging.NullHandler())
    _warn_of_variables(sys.argv[1:] if argv is None else argv)
    return run_program(app, "jq-ctl", argv)


if __name__ == "__main__":
    sys.exit(run())
