"""Hold the global options of ``jq-ctl``, and connect its commands to a server or store."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Annotated, Any, TypeVar

import typer

from jobqueue._version import __version__
from jobqueue.access.files import environment_secret
from jobqueue.access.tls import Credentials, Tls
from jobqueue.cli.display import print_json, say
from jobqueue.cli.program import presented, run_async
from jobqueue.connect.backends import create_backend, create_locks
from jobqueue.connect.urls import parse_url, with_password
from jobqueue.core.api import Backend
from jobqueue.core.errors import DeadlineExceeded, InvalidArgument, Unreachable
from jobqueue.engine.settings import EngineSettings
from jobqueue.redaction import redact_value

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., None])
DEFAULT_URL = "grpc://127.0.0.1:50051"
_STOP_TIMEOUT = 5.0
_NO_SERVER = "start one with jq-server, or name another with --server or JQ_URL"
_POOL_SIZE = 2  # connections to a database: enough for the commands of one person


class Format(enum.StrEnum):
    """Names the formats in which results can be printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(slots=True)
class CliSession:
    """Holds the global options of a command line, and connects to the chosen server or store."""

    url: str = DEFAULT_URL
    output: Format = Format.TABLE
    timeout: float = 10.0
    credentials: Credentials | None = None
    db_password: str = field(default="", repr=False)
    redis_url: str = field(default="", repr=False)  # with its password

    @property
    def json(self) -> bool:
        """Return True if the output is JSON."""
        return self.output is Format.JSON

    def tell(self, document: object, text: str) -> None:
        """Print the document if the output is JSON, else the text."""
        if self.json:
            print_json(document)
        else:
            say(text)

    def call(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        """Connect, call ``work`` with the backend, disconnect, and return the result.

        Raise DeadlineExceeded if ``work`` takes longer than the timeout.
        """
        return self.converse(lambda backend: self.within(work(backend)))

    def converse(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        """Connect, call ``work`` without a time limit, disconnect, and return the result.

        ``work`` limits each of its own steps with ``within``.
        """

        async def body() -> T:
            async with self.connected() as backend:
                return await work(backend)

        return run_async(body())

    async def within(self, step: Awaitable[T]) -> T:
        """Wait for a step and return its result.

        Raise DeadlineExceeded if the step takes longer than the timeout.
        """
        try:
            async with asyncio.timeout(self.timeout):
                return await step
        except TimeoutError:
            raise DeadlineExceeded(
                f"no answer from {redact_value(self.url)} within {self.timeout:g} s"
                " (--timeout sets how long to wait)"
            ) from None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Backend]:
        """Yield a started backend, and stop the backend afterwards.

        A store must exist: reading it, or a misspelt URL, must not create a store or change its
        schema.
        """
        shared = parse_url(self.url).scheme == "postgresql"
        backend = create_backend(
            with_password(self.url, self.db_password),
            settings=EngineSettings(version=__version__),
            create=False,
            call_timeout=self.timeout,
            credentials=self.credentials,
            locks=create_locks(self.redis_url, field="JQ_REDIS_URL") if shared else None,
            pool_size=_POOL_SIZE,
        )
        try:
            await self.within(backend.start())
            yield backend
        except Unreachable as error:
            raise Unreachable(f"{error.message}; {_NO_SERVER}") from None
        finally:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await backend.stop()


def choose_url(server: str | None, url: str | None, environ_url: str | None) -> str:
    """Return the URL to connect to: of --server or --url, else JQ_URL, else the local server."""
    if server and url:
        raise InvalidArgument("--server", "give either --server or --url, not both")
    if server:
        return server if "://" in server else f"grpc://{server}"
    return url or environ_url or DEFAULT_URL


def choose_redis(environ: Mapping[str, str]) -> str:
    """Return the URL of the Redis that the environment names, with the password.

    Return "" if the environment names no Redis. Only a PostgreSQL store that is opened directly
    uses this Redis.
    """
    return with_password(
        environ.get("JQ_REDIS_URL", ""), environment_secret(environ, "JQ_REDIS_PASSWORD")
    )


def choose_credentials(
    ca: str | None, cert: str | None, key: str | None, environ: Mapping[str, str]
) -> Credentials | None:
    """Return the credentials for the server from the flags and the environment, or None.

    A flag takes precedence over its environment variable. Without any of them, return None.
    """
    ca = ca or environ.get("JQ_TLS_CA") or None
    cert = cert or environ.get("JQ_TLS_CERT") or None
    key = key or environ.get("JQ_TLS_KEY") or None
    tls = Tls(ca, cert, key) if ca or cert or key else None
    return Credentials(environment_secret(environ, "JQ_API_KEY") or None, tls) or None


def session(context: typer.Context) -> CliSession:
    """Return the session with the global options of this command line."""
    found = context.find_root().obj
    assert isinstance(found, CliSession)
    return found


def _set_output(context: typer.Context, value: Format | None) -> Format | None:
    if value is not None and isinstance(context.find_root().obj, CliSession):
        session(context).output = value
    return value


# Every command has this option, so that people may write it before or after the command's name.
OutputOption = Annotated[
    Format | None,
    typer.Option(
        "--output", "-o", callback=_set_output, help="table for people, json for programs."
    ),
]


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the session as its first argument, and add the option --output."""
    first, *own = signature(command, eval_str=True).parameters.values()

    def run(context: typer.Context, output: OutputOption = None, **given: Any) -> None:
        command(**{first.name: session(context)}, **given)

    context, output, _ = signature(run, eval_str=True).parameters.values()
    return presented(
        run, command, [one.replace(kind=one.KEYWORD_ONLY) for one in (context, *own, output)]
    )


class CtlTyper(typer.Typer):
    """A group of commands that are decorated by ``with_session``."""

    def command(self, *names: Any, **options: Any) -> Callable[[Command], Command]:
        register = super().command(*names, **options)

        def decorate(command: Command) -> Command:
            register(with_session(command))
            return command

        return decorate
