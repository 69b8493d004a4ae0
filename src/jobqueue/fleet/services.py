"""Run the backing services of a topology, or check them.

A private service is a server that the topology starts and stops. A named service is a server that
the user has named and that runs independently.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from jobqueue.connect import extras
from jobqueue.connect.urls import parse_url
from jobqueue.core.address import Address
from jobqueue.core.errors import InvalidArgument, NotFound, Unavailable
from jobqueue.fleet.backing import (
    NotInstalled,
    PrivateKafka,
    PrivatePostgres,
    PrivateRedis,
    find_kafka,
    find_postgres,
    find_redis,
)
from jobqueue.fleet.keeper import Finding, ProcessUnit, Unit
from jobqueue.fleet.layout import SERVICES, BackingService, Probe

# The variable of the password beside each variable of a URL. A private service sets it, too: a
# password for another server in the environment must not replace the private one's.
_PASSWORDS = {
    "JQ_DB_URL": "JQ_DB_PASSWORD",
    "JQ_WORKER_SERVER": "JQ_DB_PASSWORD",
    "JQ_REDIS_URL": "JQ_REDIS_PASSWORD",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    title: str
    server: type[PrivatePostgres | PrivateRedis | PrivateKafka]
    flag: str  # the flag that names a running server
    schemes: tuple[str, ...]  # of the flag's URL; empty: the flag's value is HOST:PORT
    port: int
    how_to_get: str

    @property
    def missing(self) -> str:
        example = f"{self.schemes[0]}://..." if self.schemes else "HOST:PORT"
        return (
            f"{self.title} is not installed: install {self.title} ({self.how_to_get}),"
            f" or name a running server with {self.flag} {example}"
        )

    def address(self, url: str) -> Address:
        """Return the address of a named server, from its URL.

        Raise InvalidArgument if the URL is malformed. The error does not show the password.
        """
        if not self.schemes:
            try:  # the first address of the list is enough: that server knows the others
                addresses = [Address.parse(one.strip(), self.port) for one in url.split(",")]
                return addresses[0]
            except ValueError:
                why = "must be HOST:PORT, or several with commas between them"
                raise InvalidArgument(self.flag, why) from None
        try:
            parse_url(url, self.flag)  # strict: urlsplit may take part of a password for the host
            parts = urlsplit(url)
            if parts.scheme in self.schemes and parts.hostname:
                return Address(parts.hostname, parts.port or self.port)
        except (InvalidArgument, ValueError):
            pass  # the messages of these errors may show the URL with its password
        example = f"{self.schemes[0]}://USER:PASSWORD@HOST:PORT/NAME"
        raise InvalidArgument(self.flag, f"must be a URL like {example}")


_DEBIAN = "Debian, Ubuntu: apt-get install"
_KINDS = {
    "postgres": _Kind(
        "PostgreSQL",
        PrivatePostgres,
        "--postgres",
        ("postgresql", "postgres"),
        5432,
        f"{_DEBIAN} postgresql",
    ),
    "redis": _Kind(
        "Redis", PrivateRedis, "--redis", ("redis", "rediss"), 6379, f"{_DEBIAN} redis-server"
    ),
    "kafka": _Kind(
        "Kafka",
        PrivateKafka,
        "--kafka",
        (),
        9092,
        "with Java 17, unpack a distribution and name its folder in KAFKA_HOME,"
        " or in a checkout: scripts/services ensure kafka",
    ),
}


def check(services: tuple[BackingService, ...], *, streams: bool = False) -> None:
    """Check the backing services before anything is started.

    Raise InvalidArgument for a malformed URL. Raise NotFound if a program or client library is not
    installed. With ``streams``, Kafka's client library is needed even if the layout has no Kafka.
    """
    needed = [service.name for service in services]
    if streams and "kafka" not in needed:
        needed.append("kafka")
    problems = []
    if absent := extras.missing(needed):
        packages = " and ".join(extras.PACKAGES[extra] for extra in absent)
        are = "is" if len(absent) == 1 else "are"
        problems.append(f"{packages} {are} not installed: {extras.how_to_install(absent)}")
    find = {"postgres": find_postgres, "redis": find_redis, "kafka": find_kafka}
    for service in services:
        kind = _KINDS[service.name]
        if service.url is not None:
            kind.address(service.url)
        elif find[service.name]() is None:
            problems.append(kind.missing)
    if problems:
        raise NotFound("\n".join(problems))


def create(service: BackingService, folder: Path, logs: Path) -> NamedService | PrivateService:
    """Return the unit for a backing service, without starting it."""
    kind = _KINDS[service.name]
    if service.url is not None:
        return NamedService(service.name, service.url, kind.address(service.url))
    private = PrivateService(service, folder / service.name, kind)
    link = logs / f"{service.name}.log"
    if not link.is_symlink():
        link.symlink_to(private.log)
    return private


class NamedService(Unit):
    """A server that the user has named: the topology uses it, but does not start or stop it."""

    role = "service"
    stage = SERVICES

    def __init__(self, name: str, url: str, address: Address) -> None:
        self.name = name
        self.url = url
        self.address = f"{address} (named)"
        self._probe = Probe(*address)

    @property
    def probe(self) -> Probe:
        return self._probe

    def told(self, variable: str) -> dict[str, str]:
        """Return the environment by which a process finds the server: its URL in ``variable``."""
        return {variable: self.url}

    async def launch(self) -> None:
        found = await self.health()
        if not found.ok:
            raise Unavailable(f"{self.name} at {self.address}: {found.detail}")


class PrivateService(ProcessUnit):
    """A private server that the topology starts and stops."""

    def __init__(self, service: BackingService, folder: Path, kind: _Kind) -> None:
        self._server = kind.server(folder, service.settings)
        log, ending = self._server.log, self._server.orderly
        super().__init__(service.name, "service", SERVICES, log, ending)
        self.abrupt = self._server.abrupt[0][0]
        self.data = self._server.data
        self._kind = kind
        self._preparing: asyncio.Future[list[str]] | None = None
        self._was_up = False

    @property
    def url(self) -> str:
        """Return the URL or address by which the topology's processes connect to the server."""
        match self._server:
            case PrivatePostgres():
                return self._server.dsn()
            case PrivateRedis():
                return self._server.url
            case PrivateKafka():
                return self._server.bootstrap

    def told(self, variable: str) -> dict[str, str]:
        """Return the environment by which a process finds the server and logs in.

        ``variable`` is the name of the variable that gets the server's URL.
        """
        login: dict[str, str] = {}
        if isinstance(self._server, PrivateKafka):
            login = {
                "JQ_KAFKA_SECURITY": self._server.login["security.protocol"].lower(),
                "JQ_KAFKA_SASL_MECHANISM": self._server.login["sasl.mechanism"].lower(),
                "JQ_KAFKA_USERNAME": self._server.login["sasl.username"],
                "JQ_KAFKA_PASSWORD": self._server.password,
                "JQ_KAFKA_PASSWORD_FILE": "",
            }
        elif variable in _PASSWORDS:
            name = _PASSWORDS[variable]
            login = {name: self._server.password, f"{name}_FILE": ""}
        return {variable: self.url, **login}

    @property
    def probe(self) -> Probe | None:
        with contextlib.suppress(Unavailable):  # a server has no port before its first start
            return Probe("127.0.0.1", self._server.port)
        return None

    @property
    def address(self) -> str:  # type: ignore[override]
        return f"{self.probe.host}:{self.probe.port}" if self.probe else ""

    async def launch(self) -> None:
        self._was_up = False
        try:
            self._preparing = asyncio.ensure_future(asyncio.to_thread(self._server.prepare))
            self._child = self._server.spawn(await asyncio.shield(self._preparing))
        except NotInstalled as error:
            raise NotFound(f"{self._kind.missing} ({error.message})") from error

    def last_words(self) -> str:
        return self._server.log_end()

    async def health(self) -> Finding:
        if self._child is None or not (self._was_up or self._server.answers(self._child)):
            return Finding(False, "not ready")
        self._was_up = True
        found = await super().health()
        return replace(found, detail=self._server.remark) if found.ok else found

    async def stop(self) -> None:
        if self._preparing is not None:  # its thread cannot be cancelled
            await asyncio.gather(self._preparing, return_exceptions=True)
        await super().stop()
