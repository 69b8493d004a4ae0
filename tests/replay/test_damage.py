"""A record with holes: nothing is made up, and whoever wants may have the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from jobqueue.core.errors import Conflict, InvalidArgument, NotFound, Unavailable
from jobqueue.core.identity import UNNAMED, Identity, Writer
from jobqueue.core.job import Event, JobSpec
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.rebuild import gather
from jobqueue.core.stream import (
    CancelRequested,
    Created,
    Finished,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
    RecordItem,
)
from jobqueue.events.codec import encode
from jobqueue.events.kafka import KafkaPublisher
from jobqueue.events.record import Raw
from jobqueue.events.replay import Replay
from tests.replay.stream import Stream
from tests.services.topics import Topics as OwnTopics

pytestmark = pytest.mark.req("sch:REPLAY")


def story(job_id: str, seq: int, queue: str = "q") -> list[JobEvent]:
    """A job that was done."""
    spec = JobSpec(payload=b"p", queue=queue, type="t", max_retries=3, key=job_id)
    created = Created(seq=seq, spec=spec, created_at=1.0, key_expires_at=99.0)
    steps = [
        (None, State.PENDING, Reason.SUBMITTED),
        (State.PENDING, State.ASSIGNED, Reason.ASSIGNED),
        (State.ASSIGNED, State.RUNNING, Reason.STARTED),
        (State.RUNNING, State.DONE, Reason.SUCCEEDED),
    ]
    made = [
        JobEvent(Event(job_id, n, before, after, reason, float(n), 1, None, "", queue))
        for n, (before, after, reason) in enumerate(steps, 1)
    ]
    made[0].created = created
    made[3].finished = Finished(0, 3.0, b"r")
    return made


def queue(change: QueueChange, number: int, **more) -> QueueEvent:
    return QueueEvent(change, Queue(name="q", created_at=1.0, **more), number, float(number))


MADE = queue(QueueChange.CREATED, 1)


class Written:
    """A record as if it had been read from Kafka."""

    def __init__(self, *items: RecordItem | bytes | Raw | None) -> None:
        self.cut_off: dict[str, str] = {}
        self._items = items

    def messages(self) -> Iterator[list[Raw]]:
        for offset, item in enumerate(self._items):
            if isinstance(item, Raw):
                yield [item]
                continue
            value = item if isinstance(item, bytes | None) else encode(item)
            key = item.event.job_id.encode() if isinstance(item, JobEvent) else b""
            yield [Raw("jobs", 0, offset, key, value)]


def written_by(store: str, *items: RecordItem, generation: str = "1", at: float = 1.0) -> list[Raw]:
    """Records that say whose they are."""
    return [Raw("jobs", 0, 0, b"", encode(item), at, Writer(store, generation)) for item in items]


def read(*items: RecordItem | bytes | Raw | None, only: frozenset[str] | None = None) -> Replay:
    found = Replay(only)
    found.read(Written(*items), lambda count: None)  # type: ignore[arg-type]
    return found


def test_a_job_with_a_gap_is_named_and_can_be_left_out():
    whole, broken = story("whole", 1), story("broken", 2)
    found = read(MADE, *whole, *broken[:2], broken[3])
    with pytest.raises(Conflict, match=r"broken: version 4 follows version 2") as refused:
        found.check()
    assert "--skip-damaged" in str(refused.value)
    assert "whole" not in str(refused.value)
    state = gather(found.world, published=True)
    assert [one.job.id for one in state.jobs] == ["whole"]
    assert [key.job_id for key in state.keys] == ["whole"]
    assert state.last_seq == 2  # its number is not given again


def test_the_beginning_of_a_job_is_missed_too():
    found = read(MADE, *story("whole", 1), *story("broken", 2)[1:])
    assert list(found.damaged) == ["broken"]


def cancelled(job_id: str, seq: int) -> list[RecordItem]:
    """A job that runs and is asked to stop."""
    return [*story(job_id, seq)[:3], CancelRequested(job_id, "q", 3, 3.5)]


def test_a_topic_with_more_partitions_than_before_has_a_jobs_records_in_two():
    """Nobody says which of the two is read first."""
    whole = story("job", 1)
    for first in range(1, 4):
        found = read(MADE, *whole[first:], *whole[:first])
        found.check()
        assert found.repeated == 0
        assert found.world.jobs == read(MADE, *whole).world.jobs
    found = read(MADE, *reversed([*whole, *whole]))
    found.check()
    assert (found.repeated, found.world.jobs) == (4, read(MADE, *whole).world.jobs)


def test_a_cancel_and_a_removal_that_are_read_too_early_count():
    (flagged,) = read(MADE, *reversed(cancelled("job", 1))).world.jobs.values()
    assert flagged.job.cancel_requested
    removed = JobDeleted("job", "q", 4, 9.0, key_freed=False)
    found = read(MADE, removed, *story("job", 1))
    found.check()
    assert not found.world.jobs
    assert [key.key for key in found.world.keys] == ["job"]


def test_a_cancel_of_a_job_that_is_not_there_tells_of_a_gap():
    found = read(MADE, *story("job", 1)[:2], cancelled("job", 1)[3])
    with pytest.raises(Conflict, match=r"job: version 3 is missing"):
        found.check()


def test_what_was_lost_of_a_removed_job_does_not_matter():
    found = read(MADE, *story("gone", 2)[2:], JobDeleted("gone", "q", 4, 9.0, key_freed=False))
    found.check()
    assert not found.world.jobs


def test_a_record_of_a_newer_version_damages_its_job():
    newer = Raw("jobs", 0, 9, b"whole", b"\xff\xff", 1.0, Writer("s", "1"))
    found = read(MADE, *story("whole", 1)[:2], newer)
    with pytest.raises(Conflict, match=r"whole: jobs, partition 0, offset 9: not a record"):
        found.check()
    assert not found.world.jobs


@pytest.mark.parametrize("rubbish", [None, b"", b"\xff\xff\xff", b"hello"])
def test_tombstones_and_garbage_cost_no_job(rubbish: bytes | None):
    """A record that is really missing leaves a gap."""
    whole = story("job", 1)
    found = read(MADE, *whole[:2], Raw("jobs", 2, 7, b"job", rubbish), *whole[2:])
    found.check()
    assert found.world.jobs == read(MADE, *whole).world.jobs
    assert found.ignored == ["jobs, partition 2, offset 7"]
    gap = read(MADE, *whole[:2], Raw("jobs", 2, 7, b"job", rubbish), whole[3])
    with pytest.raises(Conflict, match="version 4 follows version 2"):
        gap.check()


def test_two_stores_in_one_record_are_told_apart():
    mine = written_by("mine", MADE, *story("one", 1), at=5.0)
    theirs = written_by("theirs", *story("two", 1), at=9.0)
    early = [*story("zero", 2)]  # of a version that did not name its store
    found = read(*early, *theirs, *mine)
    with pytest.raises(Conflict, match=r"2 stores(.|\n)*mine: 5 records(.|\n)*theirs: 4 records"):
        found.check_one_store()
    assert found.of_store("theirs") == {"theirs"}
    first = read(*early, *theirs, *mine, only=found.of_store("mine"))
    first.check_one_store()
    first.check()
    assert set(first.world.jobs) == {"zero", "one"}
    with pytest.raises(InvalidArgument, match="stores found: mine, theirs"):
        found.of_store("whose")


def test_a_rebuilt_store_is_a_new_generation_of_the_one_in_the_record():
    found = read(
        *story("zero", 2),
        *written_by("s", MADE, *story("one", 1)),
        *written_by("s", *story("two", 3), generation="2-ab"),
    )
    found.check_one_store()
    known = found.identity()
    assert known.store == "s"
    assert known.generation.startswith("3-")
    assert known.continues == {UNNAMED, "1", "2-ab"}
    assert found.identity() != known  # two that are rebuilt from it are not the same
    assert known.goes_on_from(Writer())
    assert known.goes_on_from(Writer("s", "2-ab"))
    assert not known.goes_on_from(Writer("s", found.identity().generation))


def test_the_events_of_two_stores_that_do_not_name_themselves_do_not_mix():
    found = read(MADE, *story("one", 1), *story("two", 1))
    with pytest.raises(Conflict, match=r"two: it has the same number 1 as job one"):
        found.check()


def test_an_unfinished_job_needs_its_queue_and_an_ended_one_does_not():
    found = read(*story("ended", 1), *story("waiting", 2)[:1])
    refusal = r"waiting: it is not finished, and its queue 'q' does not exist"
    with pytest.raises(Conflict, match=refusal):
        found.check()
    state = gather(found.world, published=True)
    assert [(one.queue.name, one.deleted) for one in state.queues] == [("q", True)]


def test_a_repeated_change_of_a_queue_does_not_undo_a_later_one():
    paused = queue(QueueChange.CHANGED, 2, paused=True)
    found = read(MADE, paused, MADE)
    assert found.world.queues["q"].paused
    assert found.repeated == 1
    deleted = queue(QueueChange.DELETED, 3)
    assert not read(MADE, paused, deleted, MADE, paused).world.queues


@pytest.mark.integration
async def test_a_topic_without_its_beginning(kafka: OwnTopics):
    stream = Stream(kafka)
    publisher = KafkaPublisher(stream.settings)
    await publisher.open()
    items: list[RecordItem] = [MADE, *story("early", 1)]
    for item in items:
        await publisher.send(stream.topics.of_store(Identity("s"))(item))
    await publisher.close()
    whole = await asyncio.to_thread(stream.read)
    whole.check()
    assert (whole.records, len(whole.world.jobs)) == (5, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    ends = [TopicPartition(stream.topics.jobs, n, -1) for n in range(3)]  # up to the end
    for done in admin.delete_records(ends).values():
        await asyncio.to_thread(done.result, 30.0)
    found = await asyncio.to_thread(stream.read)
    with pytest.raises(Conflict, match=r"has deleted the records before offset 4"):
        found.check()


@pytest.mark.integration
async def test_topics_that_are_not_there(kafka: OwnTopics):
    with pytest.raises(NotFound, match="has no topic"):
        await asyncio.to_thread(Stream(kafka).read)


async def test_no_kafka(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobqueue.events.record._TIMEOUT", 0.5)

    class Nowhere:
        bootstrap = "127.0.0.1:1"

        def name(self, topic: str) -> str:
            return topic

    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await asyncio.to_thread(Stream(Nowhere()).read)  # type: ignore[arg-type]
