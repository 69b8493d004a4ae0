"""jq-ctl replay: from Kafka to a store that runs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from jobqueue.config import Settings
from jobqueue.core.identity import Identity
from jobqueue.core.job import JobSpec, Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, Store
from jobqueue.events.codec import encode
from jobqueue.events.kafka import KafkaPublisher
from jobqueue.events.publisher import Message
from jobqueue.events.topics import Topics
from jobqueue.server.process import ServerProcess
from jobqueue.stores.sqlite.store import SqliteStore
from tests import patience
from tests.cli.conftest import Ctl
from tests.replay.same import Content, all_jobs, assert_same, content_of
from tests.replay.stream import Stream
from tests.replay.test_damage import story
from tests.services.topics import Topics as OwnTopics
from tests.stores.driver import new

pytestmark = pytest.mark.req("sch:REPLAY")
NOWHERE = "localhost:1"


async def work(store: Store) -> None:
    """Jobs that are done, that wait, and that were in the hands of a worker when all was lost."""
    await store.queues.create(Queue(name="default"))
    specs = [JobSpec(payload=b'{"n": %d}' % n, type="echo", key=f"k{n}") for n in range(6)]
    await store.jobs.submit(new(*specs))
    first, second, third = await store.jobs.claim([Claim(("default",), ["ghost"] * 3)])
    await store.jobs.apply([Transition.succeeded(first.seq, first.lease, b"r", 0.1)])
    await store.jobs.apply([Transition.started(second.seq, second.lease)])
    assert third.attempt == 1


def fill(stream: Stream, path: Path) -> Content:
    """Publish the work of a store."""

    async def body() -> Content:
        store = SqliteStore(path)
        await store.open()
        try:
            await work(store)
            term = await store.leadership.lead(1, 600.0)
            assert term is not None
            await stream.publish(store, term)
            return await content_of(store)
        finally:
            await store.close()

    return asyncio.run(body())


@pytest.fixture
def named(kafka: OwnTopics, monkeypatch: pytest.MonkeyPatch) -> OwnTopics:
    """The environment names Kafka and the topics."""
    monkeypatch.setenv("JQ_KAFKA_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("JQ_KAFKA_TOPIC_JOBS", kafka.name("jobs"))
    monkeypatch.setenv("JQ_KAFKA_TOPIC_QUEUES", kafka.name("queues"))
    return kafka


@pytest.mark.integration
def test_a_lost_store_is_rebuilt_and_goes_on(ctl: Ctl, named: OwnTopics, tmp_path: Path):
    expected = fill(Stream(named), tmp_path / "lost.db")
    target = tmp_path / "new.db"
    replay = ("replay", "--from-kafka", "--into", f"sqlite:///{target}")
    dry = ctl(NOWHERE, *replay, "--dry-run")
    assert dry.status == 0, dry.err
    assert "6 jobs, 1 queue, 6 idempotency keys; nothing was written" in dry.out
    assert not target.exists()
    answer = ctl(NOWHERE, *replay, "--output", "json")
    assert answer.status == 0, answer.err
    report = answer.json
    assert (report["jobs"], report["queues"], report["keys"]) == (6, 1, 6)
    assert (report["repeated"], report["left_out"], report["ignored"]) == (0, [], [])
    assert report["generation"].startswith("2-")
    assert answer.err == ""
    again = ctl(NOWHERE, *replay)
    assert again.status == 5
    assert "not empty" in again.err

    async def go_on() -> None:
        store = SqliteStore(target)
        await store.open()
        await assert_same(expected, store)
        await store.close()
        settings = {
            "db": {"url": f"sqlite:///{target}"},
            "http": {"enabled": False},
            "grpc": {"enabled": False},
            "worker": {"heartbeat_timeout": 1.0, "heartbeat_interval": 0.2},
            "queue": {"retry_profile": "scheduler"},
        }
        server = ServerProcess(Settings.model_validate(settings))
        await server.start()
        try:
            for job in expected.jobs:
                ended = await server.backend.wait(job.id, patience.longest(60.0))
                assert ended.state is State.DONE, ended
                reasons = [event.reason for event in await server.backend.history(job.id)]
                assert (Reason.WORKER_LOST in reasons) == (
                    job.state in (State.ASSIGNED, State.RUNNING)
                )
        finally:
            await server.stop()

    asyncio.run(go_on())


@pytest.mark.integration
def test_progress_is_lines_where_there_is_no_terminal(ctl: Ctl, named: OwnTopics, tmp_path: Path):
    fill(Stream(named), tmp_path / "lost.db")
    answer = ctl(NOWHERE, "replay", "--from-kafka", "--into", f"sqlite:///{tmp_path}/new.db")
    assert answer.status == 0, answer.err
    lines = answer.err.splitlines()
    assert lines[-1] == "writing: 6 of 6"
    assert any(line.startswith("reading: ") for line in lines)


@pytest.mark.integration
def test_damage_is_an_error_unless_it_may_be_left_out(ctl: Ctl, named: OwnTopics, tmp_path: Path):
    fill(Stream(named), tmp_path / "lost.db")

    async def write() -> None:
        publisher = KafkaPublisher(Stream(named).settings)
        await publisher.open()
        topic, third = named.name("jobs"), encode(story("who?", 9)[2])
        await publisher.send([Message(topic, b"who?", third, "x")])  # and nothing before it
        await publisher.send([Message(topic, b"rubbish", b"\xff\xff", "x")])
        await publisher.close()

    asyncio.run(write())
    target = tmp_path / "new.db"
    replay = ("replay", "--from-kafka", "--into", f"sqlite:///{target}", "-o", "json")
    refused = ctl(NOWHERE, *replay)
    assert refused.status == 5
    assert "who?" in refused.error["message"]
    done = ctl(NOWHERE, *replay, "--skip-damaged")
    assert done.status == 0, done.err
    assert [one["what"] for one in done.json["left_out"]] == ["who?"]
    assert [named.name("jobs") in where for where in done.json["ignored"]] == [True]

    async def count() -> int:
        store = SqliteStore(target)
        await store.open()
        jobs = await all_jobs(store)
        await store.close()
        return len(jobs)

    assert asyncio.run(count()) == 6


@pytest.mark.integration
def test_one_of_two_stores_can_be_rebuilt(ctl: Ctl, named: OwnTopics, tmp_path: Path):
    """Both began in empty topics, at the same moment."""
    expected = fill(Stream(named), tmp_path / "first.db")
    other = Topics(named.name("jobs"), named.name("dead"), named.name("queues"))

    async def write() -> None:
        publisher = KafkaPublisher(Stream(named).settings)
        await publisher.open()
        for item in story("theirs", 1):
            await publisher.send(other.of_store(Identity("another"))(item))
        await publisher.close()

    asyncio.run(write())
    target = tmp_path / "new.db"
    replay = ("replay", "--from-kafka", "--into", f"sqlite:///{target}", "-o", "json")
    refused = ctl(NOWHERE, *replay, "--skip-damaged")
    assert refused.status == 5
    assert "the records of 2 stores" in refused.error["message"]
    [mine] = re.findall(r"^  (\w{12}): ", refused.error["message"], re.MULTILINE)
    needs = ctl(NOWHERE, *replay, "--store", mine)
    assert needs.status == 2
    assert "--new-stream" in needs.error["message"]
    unknown = ctl(NOWHERE, *replay, "--store", "whose", "--new-stream")
    assert unknown.status == 2
    done = ctl(NOWHERE, *replay, "--store", mine, "--new-stream")
    assert done.status == 0, done.err
    assert (done.json["store"], done.json["jobs"]) == (mine, len(expected.jobs))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((), "--from-kafka"),
        (("--from-kafka",), "--into"),
        (("--from-kafka", "--into", "mysql://x"), "--into"),
        (("--from-kafka", "--into", "memory://"), "--into"),
        (("--from-kafka", "--into", "grpc://localhost:1"), "--into"),
        (("--from-kafka", "--into", "sqlite://x"), "--into"),
    ],
)
def test_bad_arguments_are_named(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], field: str
):
    monkeypatch.setenv("JQ_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    answer = ctl(NOWHERE, "replay", *arguments)
    assert answer.status == 2
    assert f"error: {field}: " in answer.err


def test_it_has_to_know_where_kafka_is(ctl: Ctl, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JQ_KAFKA_BOOTSTRAP", raising=False)
    answer = ctl(NOWHERE, "replay", "--from-kafka", "--dry-run")
    assert answer.status == 2
    assert "--kafka-bootstrap" in answer.err
