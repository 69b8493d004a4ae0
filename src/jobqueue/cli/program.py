"""Run the command-line programs: parse arguments, print errors, set exit codes, handle signals."""

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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from inspect import Parameter, Signature, signature
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
    Code.NOT_UNIQUE: 15,
}
EXIT_INTERRUPTED = 130

T = TypeVar("T")
# The base class of errors about a command line in typer's own copy of click, which has no public
# name.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]


def examples(*lines: str) -> str:
    """Return the end of a help text: a heading, and each example on a line."""
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

# An API key has no flag, because other users can read flags.
TlsCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Use TLS, and trust this authority (PEM). Default: the system's authorities.",
    ),
]
TlsCertOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Client certificate for the server (PEM); needs --tls-key.",
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", help="Key of the client certificate (PEM)."),
]


def with_options(
    options: Iterable[tuple[str, object]], into: str
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator that gives a command these options instead of its parameter ``into``.

    Each option is a name and the annotation of a parameter. The command gets the values that the
    user gave, by name.
    """
    named = {name.replace(".", "_"): (name, annotation) for name, annotation in options}

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        def run(**given: Any) -> T:
            values = {name: given.pop(parameter) for parameter, (name, _) in named.items()}
            said = {name: value for name, value in values.items() if value is not None}
            return command(**{into: said}, **given)

        parameters: list[Parameter] = []
        for own in signature(command, eval_str=True).parameters.values():
            parameters += (
                [
                    Parameter(parameter, own.KEYWORD_ONLY, default=None, annotation=annotation)
                    for parameter, (_, annotation) in named.items()
                ]
                if own.name == into
                else [own.replace(kind=own.KEYWORD_ONLY)]
            )
        return presented(run, command, parameters)

    return decorate


def presented(
    run: Callable[..., T], command: Callable[..., object], parameters: Sequence[Parameter]
) -> Callable[..., T]:
    """Return ``run`` with the name and docstring of ``command``, and the given parameters."""
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {own.name: own.annotation for own in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def run_program(app: typer.Typer, name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command line with typer, and return the exit status.

    Errors are printed to stderr, and no exception or traceback reaches the user.
    """
    # gRPC reads this when it is imported later. Its own log lines are not JSON, and any client that
    # fails a handshake, or sends odd metadata, could make gRPC write them without end.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    args = list(sys.argv[1:] if argv is None else argv)
    command = name_types(typer.main.get_command(app))
    as_json = wants_json(args)
    for stream in (sys.stdout, sys.stderr):  # escape characters that the terminal cannot show
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
    except BrokenPipeError:  # the reader of the output, like `head`, has closed the pipe
        _discard_stdout()
        return 0
    except SystemExit as ended:  # rich and typer turn a BrokenPipeError into SystemExit
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        _discard_stdout()
        return 0
    except _CommandLineError as error:
        return _usage_error(error, as_json)
    except UnicodeEncodeError:
        report("an argument is not valid Unicode text", Code.INVALID_ARGUMENT, as_json=as_json)
        return EXIT_CODES[Code.INVALID_ARGUMENT]
    except OSError as error:
        report(f"cannot read or write: {error}", Code.INTERNAL, as_json=as_json)
        _discard_stdout()
        return EXIT_CODES[Code.INTERNAL]
    return status if isinstance(status, int) else 0


def wants_json(args: Sequence[str]) -> bool:
    """Return True if a command line selects JSON output."""
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
    """Print an error to stderr, as text or as JSON."""
    if as_json:
        body = {"error": {"code": code.value, "message": message}}
        typer.echo(json_text(body), err=True)
    else:
        typer.echo(f"error: {clean(message)}", err=True)


def clean(text: str, indent: int = len("error: ")) -> str:
    """Return a text with its control characters escaped, so that they do not reach the terminal.

    The lines after the first are indented, so that they do not look like lines of this program.
    """
    shown = "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
    return shown.replace("\n", "\n" + " " * indent)


def clean_line(text: str) -> str:
    """Return a text with escaped control characters, as ``clean`` does, on one line."""
    return clean(text, 0).replace("\n", " ")


def json_text(document: object, indent: int | None = None) -> str:
    """Return a document as JSON. Unprintable characters are escaped to protect the terminal."""
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _discard_stdout() -> None:
    """Connect stdout to /dev/null, so that Python does not report the broken pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: of uvloop if that is installed, else of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop, and return its result."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt in a ``with`` block, so that the block can clean up."""
    # SIGINT alone is not enough: programs that a shell starts in the background ignore it.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _calm_collector() -> None:
    """Run Python's cyclic garbage collector less often than by default.

    A batch of jobs creates thousands of objects, which reference counting deletes. With the
    default of a run for every 700 new objects, the collector used a fifth of a worker's processor
    time.
    """
    gc.freeze()  # the objects that the imports created are kept for ever: do not scan them
    gc.set_threshold(50_000, 20, 20)


def run_service(
    main: Callable[[asyncio.Event], Awaitable[int]], log: logging.Logger, at_stop: str = ""
) -> int:
    """Run a service until it ends, and return the exit status. Log the error if the service fails.

    The first SIGTERM or SIGINT sets the event that ``main`` gets, and ``at_stop`` is logged. The
    second signal ends the process.
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
        log.exception("the program ends because of an unexpected error")
        return EXIT_CODES[Code.INTERNAL]
