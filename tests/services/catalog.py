"""The services that tests may need. A new one is added here, and nowhere else.

Only the standard library is imported: `scripts/services` runs before anything is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jobqueue.fleet.backing import (
    PrivateKafka,
    PrivatePostgres,
    PrivateRedis,
    find_kafka,
    find_postgres,
    find_redis,
)
from tests.services import maven
from tests.services.chromium import NoServer, find_chromium
from tests.services.engine import PrivateEngine, find_engine
from tests.services.prometheus import PrivatePrometheus, find_prometheus

REQUIRE = "JQ_TEST_REQUIRE"  # names whose absence fails a test instead of skipping it


@dataclass(frozen=True)
class Service:
    name: str
    variable: str  # names a server to use instead of a private one; empty: tests have their own
    find: Callable[[], Path | None]
    server: Callable[..., Any]  # of a folder and settings: a PrivateServer
    address: Callable[[Any], str]
    packages: tuple[str, ...]  # of Debian and Ubuntu
    client: str = "socket"  # the Python module that tests talk to it with
    is_large: bool = False  # its data belong on a disk
    units: tuple[str, ...] = ()  # what its packages let the system start at boot
    settings: Mapping[str, str] = field(default_factory=dict)  # of tests' servers
    shared: Mapping[str, str] = field(default_factory=dict)  # besides, of the one all tests share
    fetch: Callable[[], None] | None = None  # gets it, where its packages are only the tools for it
    can_fetch: Callable[[], bool] = lambda: False  # whether those tools are there

    @property
    def how_to_get(self) -> str:
        by = f"scripts/services ensure {self.name}"
        if self.fetch:
            way = f"get it ({by}, with Java 17 and Maven), set KAFKA_HOME to an unpacked one"
        else:
            way = f"install it (Debian and Ubuntu, as root: {by})"
        return f"{way}, or name a server in {self.variable}" if self.variable else way


SERVICES = {
    service.name: service
    for service in (
        Service(
            name="postgres",
            variable="JQ_TEST_POSTGRES_DSN",
            find=find_postgres,
            server=PrivatePostgres,
            address=lambda server: server.dsn(),
            packages=("postgresql",),
            client="asyncpg",
            # fsync stays on: stores warn when it is off, and tests must not show what only holds
            # without it. It costs little where the folder is in memory (places.py). Shared memory
            # is made of files in the folder, too: a server that is killed leaves nothing elsewhere.
            settings={"max_wal_size": "256MB", "dynamic_shared_memory_type": "mmap"},
            shared={
                "max_prepared_transactions": "8",  # users' own transactions may be prepared
                "max_connections": "400",  # each process of a run keeps some (kept.py)
            },
        ),
        Service(
            name="redis",
            variable="JQ_TEST_REDIS_URL",
            find=find_redis,
            server=PrivateRedis,
            address=lambda server: server.url,
            packages=("redis-server",),
            client="redis",
            units=("redis-server.service",),
            settings={"databases": "256"},  # one for each process of a test run
            shared={"rename-command": 'FLUSHALL ""'},  # it would empty those of the others, too
        ),
        Service(
            name="kafka",
            variable="JQ_TEST_KAFKA_BOOTSTRAP",
            find=find_kafka,
            # Open to everybody: a Kafka runs nobody's programs, and tests keep nothing of worth in
            # it. So their clients need no login, and a server may be named by its address alone.
            server=partial(PrivateKafka, login=False),
            address=lambda server: server.bootstrap,
            packages=("openjdk-17-jre-headless", "maven"),
            client="confluent_kafka",
            # Files of a deleted topic go at once: the folder may be in memory.
            settings={"log.segment.delete.delay.ms": "1000"},
            fetch=maven.fetch,
            can_fetch=maven.can_fetch,
        ),
        Service(
            name="prometheus",
            variable="",  # another's does not scrape a test's programs
            find=find_prometheus,
            server=PrivatePrometheus,
            address=lambda server: server.url,
            packages=("prometheus",),
            client="httpx",
            units=("prometheus.service",),
        ),
        Service(
            name="chromium",
            variable="",
            find=find_chromium,
            server=NoServer,
            address=lambda server: "",
            packages=("chromium", "fonts-dejavu-core"),
            client="playwright",
        ),
    )
}

# Got, started and required like the others, but only when it is named: few tests need it, and it
# needs root.
ENGINE = Service(
    name="containers",
    variable="JQ_TEST_DOCKER_HOST",
    find=find_engine,
    server=PrivateEngine,
    address=lambda server: server.host,
    packages=("docker.io", "docker-compose", "debootstrap"),
    is_large=True,
    units=("docker.service", "docker.socket", "containerd.service"),
)
ON_REQUEST = {ENGINE.name: ENGINE}


def known() -> dict[str, Service]:
    return {**SERVICES, **ON_REQUEST}


def required(environment: Mapping[str, str]) -> set[str]:
    """The services that must not be missing."""
    names = {name.strip() for name in environment.get(REQUIRE, "").split(",")} - {""}
    if unknown := sorted(names - known().keys()):
        raise ValueError(
            f"{REQUIRE}: unknown service {', '.join(unknown)}; known are {', '.join(known())}"
        )
    return names
