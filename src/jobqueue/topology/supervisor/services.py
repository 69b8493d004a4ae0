"""The services behind a topology: private ones that live and die with it, or named ones."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from jobqueue.core.errors import InvalidArgument, NotFound, Unavailable
from jobqueue.topology import extras
from jobqueue.topology.backing import (
    NotInstalled,
    PrivateKafka,
    PrivatePostgres,
    PrivateRedis,
    PrivateServer,
    find_kafka,
    find_postgres,
    find_redis,
)
from jobqueue.topology.connect import parse_url
from jobqueue.topology.layouts.layout import SERVICES, Probe, Service
from jobqueue.topology.supervisor import identity, probing
from jobqueue.topology.supervisor.guard import Guard
from jobqueue.topology.supervisor.unit import Unit

_ROLE = "service"
# Beside a URL: a password that stands for another server in the settings must not replace ours.
_PASSWORDS = {
    "JQ_DB_URL": "JQ_DB_PASSWORD",
    "JQ_WORKER_SERVER": "JQ_DB_PASSWORD",
    "JQ_REDIS_URL": "JQ_REDIS_PASSWORD",
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is peculiar to one sort of service."""

    title: str
    flag: str
    schemes: tuple[str, ...]  # none: it has no URLs, and is named by its host and port
    port: int
    how: str  # to get it

    @property
    def example(self) -> str:
        """How one is named."""
        return f"{self.schemes[0]}://..." if self.schemes else "HOST:PORT"


_KINDS = {
    "postgres": _Kind(
        "PostgreSQL",
        "--postgres",
        ("postgresql", "postgres"),
        5432,
        "Debian, Ubuntu: apt-get install postgresql",
    ),
    "redis": _Kind(
        "Redis",
        "--redis",
        ("redis", "rediss"),
        6379,
        "Debian, Ubuntu: apt-get install redis-server",
    ),
    "kafka": _Kind(
        "Kafka",
        "--kafka",
        (),
        9092,
        "with Java 17, unpack a distribution and name its folder in KAFKA_HOME,"
        " or in a checkout: scripts/services ensure kafka",
    ),
}


def check(services: tuple[Service, ...], *, streams: bool = False) -> None:
    """Refuse bad URLs, missing programs and missing client libraries before anything is started.

    ``streams``: the processes publish to a Kafka, whether or not the layout has one.
    """
    needed = [service.name for service in services]
    if streams and "kafka" not in needed:
        needed.append("kafka")
    problems = []
    if absent := extras.missing(needed):
        packages = " and ".join(extras.PACKAGES[extra] for extra in absent)
        are = "is" if len(absent) == 1 else "are"
        problems.append(f"{packages} {are} not installed: {extras.how_to_install(absent)}")
    for service in services:
        kind = _KINDS[service.name]
        if service.url is not None:
            _target(service.url, kind)
        elif not _is_installed(service.name):
            problems.append(_missing(kind))
    if problems:
        raise NotFound("\n".join(problems))


def _is_installed(name: str) -> bool:
    found = {"postgres": find_postgres, "redis": find_redis, "kafka": find_kafka}[name]()
    return found is not None


def create(service: Service, folder: Path, logs: Path, guard: Guard | None) -> ServiceUnit:
    """The unit for a service."""
    kind = _KINDS[service.name]
    if service.url is not None:
        return NamedService(service.name, service.url, kind)
    servers: dict[str, type[PrivateServer]] = {
        "postgres": PrivatePostgres,
        "redis": PrivateRedis,
        "kafka": PrivateKafka,
    }
    server = servers[service.name](folder / service.name, service.settings)
    link = logs / f"{service.name}.log"
    if not link.is_symlink():
        link.symlink_to(server.log)
    return PrivateService(service.name, server, kind, guard)


class NamedService:
    """Somebody else's server: used, asked for its health, and never touched."""

    role = _ROLE
    stage = SERVICES
    log: Path | None = None
    pid: int | None = None
    stop_signal = 0

    def __init__(self, name: str, url: str, kind: _Kind) -> None:
        self.name = name
        self.url = url
        host, port = _target(url, kind)
        self.address = f"{host}:{port} (named)"
        self.probe: Probe | None = Probe(host, port)

    def told(self, variable: str) -> dict[str, str]:
        """What a process finds it by."""
        return {variable: self.url}

    async def launch(self) -> None:
        """It runs already, or it does not."""
        found = await self.health()
        if not found.ok:
            raise Unavailable(f"{self.name} at {self.address}: {found.detail}")

    def ended(self) -> str | None:
        """That would be somebody else's to see to."""
        return None

    async def health(self) -> probing.Finding:
        """Whether its port connects."""
        assert self.probe is not None
        return await probing.ask(self.probe)

    async def stop(self) -> None:
        """It is left alone."""

    def kill(self) -> None:
        """It is left alone."""


class PrivateService:
    """A server of our own. Its calls block, so they run in threads, one at a time."""

    role = _ROLE
    stage = SERVICES

    def __init__(self, name: str, server: PrivateServer, kind: _Kind, guard: Guard | None) -> None:
        self.name = name
        self.log: Path | None = server.log
        self.stop_signal = int(server.orderly[0][0])
        self._server = server
        self._kind = kind
        self._guard = guard
        self._one_at_a_time = threading.Lock()
        self._stopped = False
        self._killed = False

    @property
    def pid(self) -> int | None:
        """The running server."""
        return self._server.pid

    @property
    def url(self) -> str:
        """How the processes reach it."""
        if isinstance(self._server, PrivatePostgres):
            return self._server.dsn()
        if isinstance(self._server, PrivateKafka):
            return self._server.bootstrap
        assert isinstance(self._server, PrivateRedis)
        return self._server.url

    def told(self, variable: str) -> dict[str, str]:
        """What a process finds it by, and logs in with."""
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
    def address(self) -> str:
        """Where it listens."""
        probe = self.probe
        return f"{probe.host}:{probe.port}" if probe else ""

    @property
    def probe(self) -> Probe | None:
        """Its port, once it has one."""
        with contextlib.suppress(Unavailable):
            return Probe("127.0.0.1", self._server.port)
        return None

    async def launch(self) -> None:
        """Start it and wait until it answers."""
        if self._guard is not None:
            self._guard.watch(self._server.data, self.stop_signal)
        try:
            await asyncio.to_thread(self._start)
        except NotInstalled as error:
            raise NotFound(f"{_missing(self._kind)} ({error.message})") from error

    def _start(self) -> None:
        with self._one_at_a_time:
            if not self._stopped:  # asked to stop while an earlier start was under way
                self._server.start()
            if self._killed:  # while that start was under way
                self._server.kill()

    def ended(self) -> str | None:
        """Whether it is gone; how, only its log knows."""
        return None if self._server.alive() else "ended"

    async def health(self) -> probing.Finding:
        """Whether its port connects."""
        probe = self.probe
        found = await probing.ask(probe) if probe else probing.Finding(False, "not started")
        return replace(found, detail=self._server.remark) if found.ok else found

    async def stop(self) -> None:
        """In order; by force when that takes too long."""
        self._stopped = True
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        with self._one_at_a_time:
            self._server.stop()

    def kill(self) -> None:
        """As a crash does; nothing written is lost by it. Waits for nobody."""
        self._stopped = self._killed = True
        pid = self.pid
        if pid is not None:
            identity.send(pid, identity.began(pid), self._server.abrupt[0][0])


ServiceUnit = NamedService | PrivateService


def _is_unit(unit: ServiceUnit) -> Unit:
    """For the type checker: both are units."""
    return unit


def _target(url: str, kind: _Kind) -> tuple[str, int]:
    if not kind.schemes:
        return _first_of(url, kind)
    wanted = f"{kind.schemes[0]}://USER:PASSWORD@HOST:PORT/NAME"
    try:
        parse_url(url, kind.flag)  # or a part of a password would be taken for the host, and shown
        parts = urlsplit(url)
        port = parts.port or kind.port
    except (InvalidArgument, ValueError):  # whose messages show the URL
        raise InvalidArgument(kind.flag, f"is not a URL like {wanted}") from None
    if parts.scheme not in kind.schemes or not parts.hostname:
        raise InvalidArgument(kind.flag, f"is not a URL like {wanted}")
    return parts.hostname, port


def _first_of(servers: str, kind: _Kind) -> tuple[str, int]:
    """Of a list: a client asks that one for the others."""
    targets = [_host_and_port(server.strip(), kind) for server in servers.split(",")]
    return targets[0]


def _host_and_port(server: str, kind: _Kind) -> tuple[str, int]:
    wrong = InvalidArgument(kind.flag, "is not HOST:PORT, or several with commas between")
    try:
        parts = urlsplit(f"//{server}")
        port = parts.port or kind.port
    except ValueError:
        raise wrong from None
    if not parts.hostname or parts.netloc != server or "@" in server:
        raise wrong
    return parts.hostname, port


def _missing(kind: _Kind) -> str:
    return (
        f"{kind.title} is not installed: get it ({kind.how}),"
        f" or name a running one with {kind.flag} {kind.example}"
    )
