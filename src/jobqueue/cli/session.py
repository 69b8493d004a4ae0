"""What every ``jq-ctl`` command shares: where to connect, how to answer, how long to wait."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import typer

from jobqueue._version import __version__
from jobqueue.access.files import environment_secret
from jobqueue.access.tls import Credentials, Tls
from jobqueue.cli.program import run_async
from jobqueue.connect.backends import create_backend, create_locks
from jobqueue.connect.urls import parse_url, with_password
from jobqueue.core.api import Backend
from jobqueue.core.errors import DeadlineExceeded, InvalidArgument, Unreachable
from jobqueue.engine.settings import EngineSettings
from jobqueue.redaction import redact_value

T = TypeVar("T")
DEFAULT_URL = "grpc://127.0.0.1:50051"
_STOP_TIMEOUT = 5.0
_NO_SERVER = "start one with jq-server, or name another with --server or JQ_URL"
_POOL_SIZE = 2  # one person's commands


class Format(enum.StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


@dataclass(slots=True)
class CliSession:
    """The global options of one command line."""

    url: str = DEFAULT_URL
    output: Format = Format.TABLE
    timeout: float = 10.0
    credentials: Credentials | None = None
    db_password: str = field(default="", repr=False)
    redis_url: str = field(default="", repr=False)  # with its password

    @property
    def json(self) -> bool:
        """Whether a program reads the output."""
        return self.output is Format.JSON

    def call(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        """Connect, do one thing, and disconnect; all of it within the timeout."""

        async def body() -> T:
            async with self.connected() as backend:
                return await self.within(work(backend))

        return run_async(body())

    def converse(self, work: Callable[[Backend], Awaitable[T]]) -> T:
        """Like ``call``, for work that bounds its own steps with ``within``."""

        async def body() -> T:
            async with self.connected() as backend:
                return await work(backend)

        return run_async(body())

    async def within(self, step: Awaitable[T]) -> T:
        """Bound one step by the timeout."""
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
        """A started backend. A store must exist: a look, or a typing mistake, must not create one
        nor change its schema."""
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
    """The address to use: --url or --server, else JQ_URL, else the local server."""
    if server and url:
        raise InvalidArgument("--server", "give either --server or --url, not both")
    if server:
        return server if "://" in server else f"grpc://{server}"
    return url or environ_url or DEFAULT_URL


def choose_redis(environ: Mapping[str, str]) -> str:
    """The Redis that the environment names, with its password: for a store opened directly."""
    return with_password(
        environ.get("JQ_REDIS_URL", ""), environment_secret(environ, "JQ_REDIS_PASSWORD")
    )


def choose_credentials(
    ca: str | None, cert: str | None, key: str | None, environ: Mapping[str, str]
) -> Credentials | None:
    """What to show to the server: the flags, else the environment."""
    ca = ca or environ.get("JQ_TLS_CA") or None
    cert = cert or environ.get("JQ_TLS_CERT") or None
    key = key or environ.get("JQ_TLS_KEY") or None
    tls = Tls(ca, cert, key) if ca or cert or key else None
    return Credentials(environment_secret(environ, "JQ_API_KEY") or None, tls) or None


def session(context: typer.Context) -> CliSession:
    """The session that the root command made."""
    found = context.find_root().obj
    assert isinstance(found, CliSession)
    return found


def _set_output(context: typer.Context, value: Format | None) -> Format | None:
    if value is not None and isinstance(context.find_root().obj, CliSession):
        session(context).output = value
    return value


# On every command, so that it may stand where people type it.
OutputOption = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        callback=_set_output,
        help="table for people, json for programs.",
        show_default=False,
    ),
]
