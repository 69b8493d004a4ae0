"""Topics of one test, in a Kafka that many tests share."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests import patience

CALL_TIMEOUT = patience.longest(30.0)  # seconds
_QUIET = {"log_level": 2}  # a broker that a test has stopped is no news


class Topics:
    """The topics whose names begin with a prefix that no other test has.

    Groups and transactional ids should begin with it, too.
    """

    is_mock = False

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})

    def name(self, topic: str) -> str:
        return f"{self.prefix}{topic}"

    def create(
        self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        """Its full name."""
        name = self.name(topic)
        new = NewTopic(name, partitions, replication_factor=1, config=dict(settings or {}))
        _wait(self._admin.create_topics([new], operation_timeout=CALL_TIMEOUT))
        self._await(lambda there: name in there)
        return name

    def names(self) -> list[str]:
        """The topics that there are by now."""
        found = self._admin.list_topics(timeout=CALL_TIMEOUT).topics
        return sorted(name for name in found if name.startswith(self.prefix))

    def delete_all(self) -> None:
        if names := self.names():
            _wait(self._admin.delete_topics(names, operation_timeout=CALL_TIMEOUT))
            self._await(lambda there: not there)

    def _await(self, holds: Callable[[list[str]], bool]) -> None:
        """What the controller decided takes a moment to reach the broker."""
        limit = patience.Limit(30)
        while not holds(there := self.names()):
            if limit.over:
                raise TimeoutError(f"the broker still says {there}")
            time.sleep(0.01)


class MockTopics(Topics):
    """The same in librdkafka's imitation of a cluster, which makes a topic when it hears its name.

    Each has four partitions and no settings, and nothing is ever written to a disk.
    """

    is_mock = True

    def create(
        self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        name = self.name(topic)
        self._admin.list_topics(name, timeout=CALL_TIMEOUT)
        return name

    def delete_all(self) -> None:
        """They go with the cluster."""


def run_prefix(token: str) -> str:
    """Of all topics of a test run."""
    return f"jq-{token}-"


def new_prefix(token: str) -> str:
    return f"{run_prefix(token)}{secrets.token_hex(4)}-"


@contextlib.contextmanager
def mock_cluster(token: str) -> Iterator[MockTopics]:
    """It lives in a client, and as long as that."""
    home = Producer({"test.mock.num.brokers": 1, **_QUIET})
    (broker,) = home.list_topics(timeout=CALL_TIMEOUT).brokers.values()
    yield MockTopics(f"{broker.host}:{broker.port}", new_prefix(token))
    home.flush(0)


def _wait(futures: Mapping[str, Future[None]]) -> None:
    for future in futures.values():
        future.result(CALL_TIMEOUT)
