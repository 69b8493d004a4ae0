"""Kafka and a Java to run it are found; a missing one is reported with the way to get it."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import pytest

from jobqueue.fleet.backing import (
    BackingFailed,
    NotInstalled,
    PrivateKafka,
    find_kafka,
    kafka,
)
from tests.services.maven import POM


@pytest.fixture
def java_17(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only Java is one of ours, and whose cache is empty."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").touch(mode=0o755)
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.1"\n')
    monkeypatch.setattr(kafka, "_javas", lambda: iter([home / "bin/java"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    return home


def put_jars(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("kafka_2.13-4.2.0.jar", "kafka-clients-4.2.0.jar"):
        (folder / name).touch()
    return folder


def test_a_named_distribution_comes_before_the_cache(
    java_17: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_kafka() is None
    cached = put_jars(tmp_path / f"cache/jobqueue/kafka-{kafka.VERSION}")
    assert find_kafka() == cached
    named = put_jars(tmp_path / "kafka/libs")
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "kafka"))
    assert find_kafka() == named


def test_a_wrong_name_is_told_and_not_passed_over(
    java_17: Path, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_jars(tmp_path / f"cache/jobqueue/kafka-{kafka.VERSION}")
    monkeypatch.setenv("KAFKA_HOME", "/no/such/folder")
    assert find_kafka() is None
    with pytest.raises(
        NotInstalled, match=r"KAFKA_HOME is /no/such/folder, but .* does not contain"
    ):
        PrivateKafka(folder / "server").start()


@pytest.mark.parametrize("release", ['JAVA_VERSION="11.0.2"', 'JAVA_VERSION="1.8.0_302"', "?"])
def test_an_old_java_does_not_do(java_17: Path, tmp_path: Path, folder: Path, release: str) -> None:
    put_jars(tmp_path / f"cache/jobqueue/kafka-{kafka.VERSION}")
    assert find_kafka()
    (java_17 / "release").write_text(release)
    assert find_kafka() is None
    with pytest.raises(NotInstalled, match="no Java 17 or newer"):
        PrivateKafka(folder / "server").start()


def test_what_is_missing_is_told_with_the_way_to_get_it(java_17: Path, folder: Path) -> None:
    with pytest.raises(NotInstalled, match="scripts/services ensure kafka") as failed:
        PrivateKafka(folder / "server").start()
    assert f"Kafka {kafka.VERSION} is not in" in str(failed.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_jars_that_it_cannot_reach_are_said(
    java_17: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "closed").mkdir(mode=0o700)
    put_jars(folder / "closed/kafka/libs")
    monkeypatch.setenv("KAFKA_HOME", str(folder / "closed/kafka"))
    with pytest.raises(
        BackingFailed, match=r"may not enter .*closed, which is on the path of its jars"
    ):
        PrivateKafka(folder / "server").start()


def test_javas_are_looked_for_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str, release: str) -> Path:
        program = tmp_path / name / "bin/java"
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
        (tmp_path / name / "release").write_text(f'JAVA_VERSION="{release}"')
        return program

    named, in_path = install("named", "11.0.1"), install("in_path", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    monkeypatch.setenv("PATH", str(in_path.parent))
    assert kafka.find_java() == in_path  # the other is too old
    (tmp_path / "named/release").write_text('JAVA_VERSION="17"')
    assert kafka.find_java() == named


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({"XDG_CACHE_HOME": "/x"}, 0, "/x"),
        ({"XDG_CACHE_HOME": "/x"}, 1, "/x"),
        ({}, 0, "/var/cache"),  # root's home is closed to the user that the broker runs as
        ({}, 1, "/home/me/.cache"),
    ],
)
def test_the_cache_is_outside_of_every_checkout(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], uid: int, expected: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("HOME", "/home/me")
    assert kafka.cache_folder(environ) == Path(expected, "jobqueue", f"kafka-{kafka.VERSION}")


def test_the_version_is_the_one_that_is_fetched() -> None:
    assert f"<kafka.version>{kafka.VERSION}</kafka.version>" in POM.read_text()


def test_where_it_is_fetched_from_is_the_machines_own_business() -> None:
    assert "epositor" not in re.sub("<!--.*?-->", "", POM.read_text(), flags=re.DOTALL)


def test_cluster_ids_never_look_like_options(monkeypatch: pytest.MonkeyPatch) -> None:
    unlucky = uuid.UUID(bytes=b"\xfb\xef\xbe" * 5 + b"\xfb")  # all dashes, in base 64
    monkeypatch.setattr(uuid, "uuid4", lambda: unlucky)
    assert re.fullmatch(r"[A-Za-z0-9_]{22}", kafka._new_cluster_id())
