"""Real servers for tests.

    postgres_dsn          an empty database of the test's own, with the schema
    empty_postgres_dsn    a new database without it
    redis_url             an empty Redis database
    kafka                 topics of the test's own
    own_postgres          makes servers that the test may kill, restart and stop
    own_redis             the same
    own_kafka             the same
    own_prometheus        the same, with the files that it is given

Servers are started when the first test asks for one, shared by all processes of the run, and ended
with it. A test that asks for one is marked `integration`; one that asks by `getfixturevalue` has
to be marked by hand, since pytest cannot know. See docs/testing.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobqueue.fleet.backing import PrivateKafka, PrivatePostgres, PrivateRedis
from tests import stand_in
from tests.services import catalog
from tests.services.prometheus import PrivatePrometheus
from tests.services.run import Place, Run

if TYPE_CHECKING:
    from tests.services.topics import Topics

FIXTURES = {
    *("postgres_dsn", "empty_postgres_dsn", "redis_url", "kafka"),
    *("own_postgres", "own_redis", "own_kafka", "own_prometheus"),
}
MOCK = "kafka_or_mock"
_run: pytest.StashKey[Run] = pytest.StashKey()

OwnPostgres = Callable[..., PrivatePostgres]
OwnRedis = Callable[..., PrivateRedis]
OwnKafka = Callable[..., PrivateKafka]
OwnPrometheus = Callable[..., PrivatePrometheus]


# The run.


def pytest_configure(config: pytest.Config) -> None:
    try:
        catalog.required(os.environ)
    except ValueError as wrong:
        raise pytest.UsageError(str(wrong)) from None
    config.addinivalue_line("markers", f"{MOCK}: runs on librdkafka's mock cluster without a Kafka")
    told = getattr(config, "workerinput", None)
    if told is None:
        config.stash[_run] = Run(Place.new())
    else:
        place = Place(Path(told["services_folder"]), told["services_owner"])
        config.stash[_run] = Run(place, int(told["workerid"].removeprefix("gw")))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of xdist."""
    place = node.config.stash[_run].place
    node.workerinput["services_folder"] = str(place.folder)
    node.workerinput["services_owner"] = place.owner


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(_run, None)
    if run is None:
        return
    if "tests.services.kept" in sys.modules:
        sys.modules["tests.services.kept"].KEEPER.end()
    run.close()
    if not hasattr(config, "workerinput"):
        run.end()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("integration")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What ran on an imitation has not been shown."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    imitated = {report.nodeid for report in reports if stand_in.was_used(report)}
    if imitated:
        terminalreporter.section("not on a real Kafka")
        terminalreporter.line(
            f"{len(imitated)} tests ran on librdkafka's mock cluster, which shows nothing about "
            f"Kafka: {catalog.SERVICES['kafka'].how_to_get}"
        )


# Fixtures.


def run_of(config: pytest.Config) -> Run:
    """For fixtures of a wider scope than a test: those that use them are marked by hand."""
    return config.stash[_run]


@pytest.fixture
def services(request: pytest.FixtureRequest) -> Run:
    if not request.node.get_closest_marker("integration"):
        pytest.fail("a test with a real server needs @pytest.mark.integration", pytrace=False)
    return request.config.stash[_run]


@pytest.fixture
def postgres_dsn(services: Run) -> Iterator[str]:
    """The address of an empty database with the schema."""
    name = services.databases.lend()
    yield services.databases.dsn(name)
    services.databases.give_back(name)


@pytest.fixture
def empty_postgres_dsn(services: Run) -> Iterator[str]:
    """The address of a fresh database with nothing in it."""
    name = services.databases.create(empty=True)
    yield services.databases.dsn(name)
    services.databases.drop(name)


@pytest.fixture
def redis_url(services: Run) -> str:
    """The address of an empty Redis database."""
    url = services.redis_url
    import redis

    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def kafka(request: pytest.FixtureRequest, services: Run) -> Iterator[Topics]:
    """Topics of the test's own; `.bootstrap` is the address, `.is_mock` tells an imitation."""
    if request.node.get_closest_marker(MOCK) and services.may_imitate("kafka"):
        from tests.services.topics import mock_cluster

        stand_in.use(request.node, "librdkafka's mock cluster")
        with mock_cluster(services.place.token) as imitated:
            yield imitated
        return
    topics = services.topics()
    yield topics
    topics.delete_all()


@pytest.fixture
def own_postgres(services: Run) -> Iterator[OwnPostgres]:
    """`own_postgres(settings)` is a PostgreSQL of the test's own, running and empty."""
    yield from _own("postgres", services)


@pytest.fixture
def own_redis(services: Run) -> Iterator[OwnRedis]:
    """`own_redis(settings)` is a Redis of the test's own, running and empty."""
    yield from _own("redis", services)


@pytest.fixture
def own_kafka(services: Run) -> Iterator[OwnKafka]:
    """`own_kafka(settings)` is a Kafka of the test's own, running and without topics."""
    yield from _own("kafka", services)


@pytest.fixture
def own_prometheus(services: Run) -> Iterator[OwnPrometheus]:
    """`own_prometheus({"prometheus.yaml": text, …})` is a Prometheus that runs with these files."""
    yield from _own("prometheus", services)


def _own(name: str, run: Run) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(settings: Mapping[str, str] | None = None) -> Any:
        made.append(run.own(name, settings or {}))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        server.remove()
