"""How the programs begin and end: parsing, errors, exit codes, signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import typer

from jobqueue import logs
from jobqueue.cli.help_types import name_types
from jobqueue.cli.version import version_text
from jobqueue.connect.starting import stop_on_signals
from jobqueue.core.errors import Code, JobQueueError

# 0 is success, 130 Ctrl-C.
EXIT_CODES: dict[Code, int] = {
    Code.INTERNAL: 1,
    Code.INVALID_ARGUMENT: 2,
    Code.PERMISSION_DENIED: 3,
    Code.NOT_FOUND: 4,
    Code.CONFLICT: 5,
    Code.UNAVAILABLE: 6,
    Code.DEADLINE_EXCEEDED: 7,
    Code.ALREADY_EXISTS: 8,
    Code.KEY_CONFLICT: 9,
    Code.QUEUE_FULL: 10,
    Code.OUTCOME_UNKNOWN: 11,
    Code.JOB_FAILED: 12,
    Code.UNAUTHENTICATED: 13,
    Code.RATE_LIMITED: 14,
}
EXIT_INTERRUPTED = 130

T = TypeVar("T")
# typer carries its own copy of click; this is how its base of "wrong command line" is reached
# without naming the copy.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]


def examples(*lines: str) -> str:
    """The end of a help text: one example on a line."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  {line}" for line in lines)])


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_text())
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and the commit, and exit.",
    ),
]


def run_program(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status. Nothing but output of the command is printed."""
    # Read when grpc is loaded, which is later: its own lines are not JSON, and anybody who fails
    # a handshake, or sends odd metadata, could make it write them, without end.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    args = list(sys.argv[1:] if argv is None else argv)
    command = name_types(typer.main.get_command(app))
    as_json = wants_json(args)
    for stream in (sys.stdout, sys.stderr):  # what a terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = command.main(args=args, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except JobQueueError as error:
        report(error.message, error.code, as_json=as_json)
        return EXIT_CODES[error.code]
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough
        _discard_stdout()
        return 0
    except SystemExit as ended:  # what rich and typer make of the same
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _discard_stdout()
        return 0
    except _CommandLineError as error:
        return _usage_error(error, as_json)
    except UnicodeEncodeError:
        report("an argument is not valid text", Code.INVALID_ARGUMENT, as_json=as_json)
        return EXIT_CODES[Code.INVALID_ARGUMENT]
    except OSError as error:
        report(f"cannot read or write: {error}", Code.INTERNAL, as_json=as_json)
        _discard_stdout()
        return EXIT_CODES[Code.INTERNAL]
    return status if isinstance(status, int) else 0


def wants_json(args: Sequence[str]) -> bool:
    """Whether a command line asks for output that a program reads."""
    pairs = zip(args, [*args[1:], ""], strict=False)
    return any(
        (name in ("--output", "-o") and value == "json") or name in ("--output=json", "-ojson")
        for name, value in pairs
    )


def _usage_error(error: Exception, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    shown = getattr(error, "format_message", lambda: str(error))()
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(shown, err=True)
        return EXIT_CODES[Code.INVALID_ARGUMENT]
    if context is not None and not as_json:
        shown += f"\nsee: {context.command_path} --help"
    report(shown, Code.INVALID_ARGUMENT, as_json=as_json)
    return EXIT_CODES[Code.INVALID_ARGUMENT]


def report(message: str, code: Code, *, as_json: bool = False) -> None:
    """Tell of an error on stderr."""
    if as_json:
        body = {"error": {"code": code.value, "message": message}}
        typer.echo(json_text(body), err=True)
    else:
        typer.echo(f"error: {clean(message)}", err=True)


def clean(text: str, indent: int = len("error: ")) -> str:
    """Text from elsewhere, without characters that could command the terminal.

    Its further lines are indented, so that none of them looks like a line of ours.
    """
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
    return shown.replace("\n", "\n" + " " * indent)


def clean_line(text: str) -> str:
    """The same, on one line."""
    return clean(text, 0).replace("\n", " ")


def json_text(document: object, indent: int | None = None) -> str:
    """JSON that commands no terminal: what is not printable is escaped, as JSON may."""
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _discard_stdout() -> None:
    """Keep the interpreter from complaining about the broken pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """What was started is stopped in order, whichever signal comes."""
    # Not by SIGINT itself, which a shell has programs in the background ignore.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _calm_collector() -> None:
    """Look for cyclic garbage less often than the default of every 700 new objects.

    A batch of jobs is thousands of objects that end by themselves; looking through them cost a
    fifth of a worker's processor time. What was made by the imports stays, and is left alone.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def run_service(
    main: Callable[[asyncio.Event], Awaitable[int]], log: logging.Logger, at_stop: str = ""
) -> int:
    """Run a service; what ends it unexpectedly is logged, as everything else about it is.

    The first SIGTERM or SIGINT asks it to stop, and ``at_stop`` is logged; the second ends the
    process.
    """

    async def body() -> int:
        stop = asyncio.Event()
        with stop_on_signals(stop, log, at_stop):
            return await main(stop)

    _calm_collector()
    try:
        return run_async(body())
    except JobQueueError as error:
        message, _, details = error.message.partition("\n")
        extra = {"code": error.code.value}
        logs.write(log, logging.ERROR, message, extra=extra, details=details)
        return EXIT_CODES[error.code]
    except Exception:
        log.exception("ended by a defect")
        return EXIT_CODES[Code.INTERNAL]
