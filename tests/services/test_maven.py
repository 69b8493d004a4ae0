"""Fetching Kafka: once, whole, and by one at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from jobqueue.fleet.backing import kafka
from tests.services import maven
from tests.services.maven import FetchFailed, fetch

# It notes that it was called, and copies its jars one after the other.
MAVEN = """\
#!/bin/sh
echo "$@" >> {calls}
for word; do case "$word" in -DoutputDirectory=*) into="${{word#*=}}";; esac; done
touch "$into/kafka_2.13-4.2.0.jar"
sleep 0.2
{then}
touch "$into/kafka-clients-4.2.0.jar"
"""


class Repository:
    """A Maven of ours, and an empty cache."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jars = folder / "cache/jobqueue" / f"kafka-{kafka.VERSION}"
        self._program = folder / "bin/mvn"
        self._program.parent.mkdir()
        self._calls = folder / "calls"
        self.does("")
        monkeypatch.setenv("PATH", f"{self._program.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.delenv("KAFKA_HOME", raising=False)
        monkeypatch.setattr(kafka, "find_java", lambda: Path("/usr/bin/java"))
        monkeypatch.setattr(maven, "_archive_classes", lambda jars: None)

    def does(self, then: str) -> None:
        self._program.write_text(MAVEN.format(calls=self._calls, then=then))
        self._program.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def beside(self) -> list[str]:
        return [path.name for path in self.jars.parent.iterdir() if path != self.jars]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    return Repository(tmp_path, monkeypatch)


def test_it_is_fetched_once(repository: Repository) -> None:
    fetch()
    fetch()
    assert len(repository.calls) == 1
    assert kafka.is_complete(repository.jars)
    assert str(maven.POM) in repository.calls[0]
    assert repository.beside() == [f"{repository.jars.name}.lock"]


def test_two_at_once_fetch_it_once(repository: Repository) -> None:
    failed: list[BaseException] = []

    def one() -> None:
        try:
            fetch()
            assert kafka.is_complete(repository.jars)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(repository.calls) == 1


def test_what_is_half_fetched_is_not_in_the_cache(repository: Repository) -> None:
    repository.does("echo no route to the repository; exit 1")
    with pytest.raises(FetchFailed, match="no route to the repository"):
        fetch()
    assert not repository.jars.exists()
    assert repository.beside() == [f"{repository.jars.name}.lock"]
    repository.does("")
    fetch()
    assert kafka.is_complete(repository.jars)


def test_a_spoilt_cache_is_made_anew(repository: Repository) -> None:
    fetch()
    next(repository.jars.glob("kafka-clients-*")).unlink()
    fetch()
    assert len(repository.calls) == 2
    assert kafka.is_complete(repository.jars)


def test_maven_may_not_take_for_ever(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "_TIMEOUT", 0.3)
    repository.does("exec sleep 100")
    with pytest.raises(FetchFailed, match="took more than"):
        fetch()
    assert not repository.jars.exists()


def test_a_strict_umask_does_not_lock_brokers_out(repository: Repository) -> None:
    before = os.umask(0o077)
    try:
        fetch()
    finally:
        os.umask(before)
    assert repository.jars.stat().st_mode & 0o777 == 0o755
    assert repository.jars.parent.stat().st_mode & 0o777 == 0o755
    assert {jar.stat().st_mode & 0o777 for jar in repository.jars.iterdir()} == {0o644}


def test_a_distribution_that_is_named_is_not_replaced(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_HOME", "/no/such/folder")
    with pytest.raises(FetchFailed, match="KAFKA_HOME is /no/such/folder"):
        fetch()
    assert repository.calls == []


def test_without_maven_it_says_what_is_needed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert not maven.can_fetch()
    with pytest.raises(FetchFailed, match=r"Java 17 or newer and Maven \(mvn\) are needed"):
        fetch()
