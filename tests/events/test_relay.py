"""What the relay promises, over every store."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from jobqueue.core.errors import Conflict
from jobqueue.core.identity import Identity, Writer
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer, armed
from jobqueue.core.queue import Queue
from jobqueue.core.rebuild import World
from jobqueue.core.store import BEGINNING, Lag, Position, Store, Term, TermEnded
from jobqueue.core.stream import (
    CancelRequested,
    Failed,
    JobDeleted,
    JobEvent,
    QueueChange,
    QueueEvent,
)
from jobqueue.events import relay as relay_module
from jobqueue.events.publisher import Message
from jobqueue.events.relay import Relay
from jobqueue.events.topics import DispatchTopics, Topics
from tests import patience
from tests.events.conftest import Relays
from tests.events.fake import PATIENCE, FakePublisher, until
from tests.stores.driver import NO_BACKOFF, Driver


async def busy(driver: Driver) -> list[str]:
    """Jobs that end in every way; returns the ids of all their events."""
    for state in set(State) - {State.PENDING}:
        await driver.brought_to(state)
    # Others wait where nobody takes from.
    await driver.store.queues.create(Queue(name="aside", retry_profile=NO_BACKOFF))
    await driver.submit(b"later", delay=60.0, labels={"a": "b"}, ttl=900.0)
    await driver.submit(queue="aside")
    dead = await driver.brought_to(State.DEAD_LETTERED, queue="aside", priority=9)
    await driver.do(Transition.retried_by_hand(dead.seq))
    await driver.do(Transition.cancelled(dead.seq))
    await driver.do(Transition.retried_by_hand(dead.seq))
    await driver.do(Transition.cancelled(dead.seq))
    flagged = await driver.running()
    assert await driver.store.jobs.request_cancel(flagged.seq)
    return await written(driver)


async def written(driver: Driver) -> list[str]:
    return [f"{event.job_id}:{event.version}" for event in await driver.all_events()]


async def caught_up(store: Store) -> None:
    while True:
        lag = await store.stream.lag()
        if lag is not None and not lag.events:
            return
        await asyncio.sleep(0.01)


def assert_in_order(publisher: FakePublisher) -> None:
    """By event id, each job's events come without a gap and in their order."""
    latest: Counter[str] = Counter()
    for item in publisher.items("jq.job-events"):
        if isinstance(item, JobEvent):
            assert item.event.version == latest[item.event.job_id] + 1
            latest[item.event.job_id] += 1


async def kill(relay: Relay) -> None:
    """End it where it is, as a crash would."""
    for task in relay._tasks:
        task.cancel()
    await asyncio.wait(relay._tasks)
    relay._tasks = []


@pytest.mark.req("jq:FR-036", "jq:FR-037")
async def test_every_transition_is_published_once_and_is_enough_to_rebuild(
    driver: Driver, relays: Relays
):
    term, publisher = await driver.term(), FakePublisher()
    relays.start(driver.store, term, publisher)
    expected = await busy(driver)
    await until(lambda: len(publisher.event_ids()) >= len(expected))
    await caught_up(driver.store)
    assert sorted(publisher.event_ids()) == sorted(expected)
    assert len({(m.topic, m.event_id) for m in publisher.log}) == len(publisher.log)  # no repeats
    assert_in_order(publisher)
    world = World()
    for item in publisher.items():
        assert world.add(item) or item.event_id in publisher.event_ids("job.dead-lettered")
    jobs = {job.id: job for job in await driver.all_jobs()}
    assert {job_id: one.job for job_id, one in world.jobs.items()} == jobs
    assert world.queues == {one.queue.name: one.queue for one in await driver.store.queues.stats()}


@pytest.mark.req("jq:FR-036")
async def test_a_message_has_the_job_as_its_key(driver: Driver, relays: Relays):
    publisher = FakePublisher()
    relays.start(driver.store, await driver.term(), publisher)
    expected = await busy(driver)
    await until(lambda: len(publisher.event_ids()) >= len(expected))
    for message in publisher.log:
        if message.topic == "jq.job-events":
            assert message.key.decode() == message.event_id.partition(":")[0]


@pytest.mark.req("jq:FR-034")
async def test_dead_letters_are_published_once_more(driver: Driver, relays: Relays):
    publisher = FakePublisher()
    relays.start(driver.store, await driver.term(), publisher)
    await driver.brought_to(State.DONE)
    dead = await driver.brought_to(State.DEAD_LETTERED)
    await until(lambda: bool(publisher.event_ids("job.dead-lettered")))
    await caught_up(driver.store)
    (item,) = publisher.items("job.dead-lettered")
    assert isinstance(item, JobEvent)
    assert (item.event.job_id, item.event.to_state) == (dead.id, State.DEAD_LETTERED)
    assert item.event_id in publisher.event_ids()


@pytest.mark.req("jq:FR-036", "jq:FR-038")
@pytest.mark.parametrize("place", ["relay.read", "relay.sent", "relay.acked"])
async def test_a_relay_that_dies_repeats_and_does_not_lose(
    driver: Driver, relays: Relays, place: str
):
    term, publisher = await driver.term(), FakePublisher()
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    before = await busy(driver)
    with armed(place, hang):
        first = relays.start(driver.store, term, publisher)
        await patience.wait_for(reached.wait(), 20.0)
        await kill(first)
    sent = len(publisher.log)
    assert bool(sent) == (place != "relay.read")
    lag = await driver.store.stream.lag()
    assert lag is not None
    assert lag.events >= len(before)  # the mark has not moved
    expected = await busy(driver)
    relays.start(driver.store, term, publisher)
    await until(lambda: len(publisher.event_ids()) >= len(expected))
    await caught_up(driver.store)
    assert sorted(publisher.event_ids()) == sorted(expected)
    assert_in_order(publisher)
    repeated = len(publisher.log) - len({(m.topic, m.event_id) for m in publisher.log})
    assert repeated == sent


@pytest.mark.req("jq:FR-038")
async def test_what_fails_is_published_from_the_mark_on(driver: Driver, relays: Relays):
    term, publisher = await driver.term(), FakePublisher()
    publisher.broken = 2
    expected = await busy(driver)
    relays.start(driver.store, term, publisher)
    await until(lambda: len(publisher.event_ids()) >= len(expected))
    await caught_up(driver.store)
    assert publisher.opened == 3
    assert sorted(publisher.event_ids()) == sorted(expected)
    assert_in_order(publisher)


@pytest.mark.req("jq:FR-038")
async def test_what_came_through_before_a_failure_is_not_published_again(
    driver: Driver, relays: Relays, monkeypatch: pytest.MonkeyPatch
):
    """One page is safe, those behind it are not, and it is all heard of at once."""
    monkeypatch.setattr(relay_module, "_PAGE", 2)
    monkeypatch.setattr(relay_module, "_SMALL", 0)
    term, publisher, counts = await driver.term(), FakePublisher(), Counts()
    expected = await busy(driver)
    publisher.away = True
    relays.start(driver.store, term, publisher, observer=counts)
    await until(lambda: len(publisher.held) == relay_module._AHEAD)
    first = [message.event_id for message in publisher.held[0]]
    publisher.come_back(taking=1)
    await until(lambda: len(publisher.event_ids()) >= len(expected))
    await caught_up(driver.store)
    assert sorted(publisher.event_ids()) == sorted(expected)
    sent = Counter((message.topic, message.event_id) for message in publisher.log)
    assert {sent[key] for key in sent if key[1] in first} == {1}
    assert counts.failed["jq.job-events"]  # an operator who counts failures sees this one


class Counts(Observer):
    """Counts what was published and what was not."""

    def __init__(self) -> None:
        self.lag: Lag | None = None
        self.refused = False
        self.failed: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()

    def publish_failed(self, topic: str, count: int) -> None:
        self.failed[topic] += count

    def published(self, topic: str, count: int) -> None:
        self.taken[topic] += count

    def stream_lag(self, lag: Lag | None) -> None:
        self.lag = lag

    def stream_refused(self, refused: bool) -> None:
        self.refused = refused


@pytest.mark.req("jq:FR-038")
async def test_jobs_go_on_while_the_stream_is_away(
    driver: Driver, relays: Relays, caplog: pytest.LogCaptureFixture
):
    term, publisher, counts = await driver.term(), FakePublisher(), Counts()
    publisher.away, publisher.trouble = True, "all brokers are down"
    relay = relays.start(driver.store, term, publisher, observer=counts)
    expected = await busy(driver)
    await until(lambda: bool(counts.failed))  # the first page may be of a queue alone
    health = await relay.health()
    assert not health.ok
    assert "all brokers are down" in health.detail
    assert "events behind" in health.detail
    assert "nothing is published to Kafka" in caplog.text
    publisher.come_back()
    await until(lambda: len(publisher.event_ids()) >= len(expected))
    await caught_up(driver.store)
    await until(lambda: counts.taken["jq.job-events"] >= len(expected))
    health = await relay.health()
    assert health.ok, health
    assert "up to date" in health.detail


@pytest.mark.req("jq:FR-038")
async def test_a_stream_that_was_never_there_is_waited_for(driver: Driver, relays: Relays):
    term, publisher, counts = await driver.term(), FakePublisher(), Counts()
    publisher.unreachable = True
    relay = relays.start(driver.store, term, publisher, observer=counts)
    expected = await busy(driver)
    await until(lambda: publisher.opened > 1 and counts.failed["jq.job-events"] > 1)
    health = await relay.health()
    assert not health.ok
    assert "connection refused" in health.detail
    publisher.unreachable = False
    await until(lambda: len(publisher.event_ids()) >= len(expected))
    await caught_up(driver.store)
    assert (await relay.health()).ok


@pytest.mark.req("jq:FR-038")
async def test_the_lag_is_told_of_a_stream_that_was_never_there(
    driver: Driver, relays: Relays, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay_module, "_LAG_EVERY", 0.02)
    term, publisher, counts = await driver.term(), FakePublisher(), Counts()
    publisher.unreachable = True
    relays.start(driver.store, term, publisher, observer=counts)
    await busy(driver)
    await until(lambda: counts.lag is not None and counts.lag.events > 0)


@pytest.mark.req("jq:FR-038")
async def test_a_standby_looks_whether_the_stream_is_there(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay_module, "_PROBE_EVERY", 0.02)
    publisher = FakePublisher()
    publisher.unreachable = True
    relay = Relay(publisher)
    relay.start(driver.store.stream, lambda: None)
    await until(lambda: publisher.probed > 1)
    health = await relay.health()
    assert not health.ok
    assert "nowhere:1: connection refused" in health.detail
    assert "another server publishes" in health.detail
    publisher.unreachable = False
    seen = publisher.probed
    await until(lambda: publisher.probed > seen + 1)
    assert (await relay.health()).ok
    assert not publisher.opened  # it only looks
    await relay.stop()


@pytest.mark.req("jq:FR-036")
async def test_a_record_that_is_refused_raises_an_alarm_and_blocks_nothing(
    driver: Driver, relays: Relays, caplog: pytest.LogCaptureFixture
):
    term, publisher, counts = await driver.term(), FakePublisher(), Counts()
    await busy(driver)
    large = await driver.submit(b"large")
    publisher.refuses = lambda message: message.event_id == f"{large}:1"
    expected = await written(driver)
    relay = relays.start(driver.store, term, publisher, observer=counts)
    await until(lambda: len(publisher.event_ids()) >= len(expected) - 1)
    await caught_up(driver.store)
    assert set(expected) - set(publisher.event_ids()) == {f"{large}:1"}
    assert counts.failed == {"jq.job-events": 1}
    (alarm,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert alarm.event_id == f"{large}:1"  # type: ignore[attr-defined]
    lag = await driver.store.stream.lag()
    assert lag is not None
    assert lag.refused == 1
    health = await relay.health()
    assert not health.ok
    assert "1 records were refused" in health.detail


async def test_what_is_under_way_is_bounded(
    driver: Driver, relays: Relays, monkeypatch: pytest.MonkeyPatch
):
    """However much waits: pages of so many bytes, so many of them. Memory does not grow with it."""
    monkeypatch.setattr(relay_module, "_PAGE", 20)
    monkeypatch.setattr(relay_module, "_PAGE_BYTES", 50_000)
    await driver.queue("large")
    for _ in range(60):
        await driver.submit(b"x" * 10_000, queue="large")
    publisher = FakePublisher()
    publisher.away = True
    relays.start(driver.store, await driver.term(), publisher)
    await until(lambda: len(publisher.held) == relay_module._AHEAD)
    await asyncio.sleep(0.2)  # it would go on, if it did
    pages = [sum(len(message.value) for message in page) for page in publisher.held]
    assert len(pages) == relay_module._AHEAD
    assert max(pages) <= 2 * 50_000
    publisher.come_back()
    await caught_up(driver.store)
    assert len(publisher.event_ids()) == 60


@pytest.mark.parametrize("dispatch", [None, DispatchTopics()], ids=["record", "hints"])
async def test_jobs_come_first_unless_they_wait_for_what_is_published(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, dispatch: DispatchTopics | None
):
    monkeypatch.setattr(relay_module, "_PAGE", 4)
    monkeypatch.setattr(relay_module, "_SMALL", 1)
    await busy(driver)
    relay = Relay(FakePublisher(), Topics(dispatch=dispatch))
    rests: list[float] = []

    def rest(page: float) -> float:
        rests.append(page)
        return 0.0

    monkeypatch.setattr(relay._pace, "rest", rest)
    monkeypatch.setattr(relay._wake, "is_set", lambda: True)  # jobs are being worked on
    term = await driver.term()
    relay.start(driver.store.stream, lambda: term)
    await caught_up(driver.store)
    await relay.stop()
    assert bool(rests) is (dispatch is None)


async def test_nothing_is_published_without_a_term(driver: Driver):
    publisher, store = FakePublisher(), driver.store
    relay = Relay(publisher)
    await busy(driver)
    terms: list[Term | None] = [None]
    relay.start(store.stream, lambda: terms[0])
    await asyncio.sleep(0)
    assert await store.stream.lag() is None
    terms[0] = await driver.term()
    relay.wake()
    await until(lambda: bool(publisher.log))
    await relay.stop()


async def test_an_old_term_moves_no_mark(driver: Driver):
    old = await driver.term()
    start = await driver.store.stream.begin(old)
    await busy(driver)
    page = await driver.store.stream.changes_after(start, 5, 1 << 20)
    await driver.store.leadership.resign(old)
    new = await driver.store.leadership.lead(2, 3_600.0)
    assert new is not None
    for call in (
        driver.store.stream.move_mark(page.position, old),
        driver.store.stream.begin(old),
        driver.store.stream.end(old),
    ):
        with pytest.raises(TermEnded):
            await call
    assert await driver.store.stream.begin(new) == start
    await driver.store.stream.move_mark(page.position, new)
    assert await driver.store.stream.begin(new) == page.position


async def test_what_is_not_published_stays(driver: Driver):
    term, store = await driver.term(), driver.store
    done = await driver.brought_to(State.DONE)
    other = await driver.brought_to(State.DONE)
    position = await store.stream.begin(term)
    driver.clock.advance(100.0)
    assert await driver.prune(driver.clock.now()) == 0
    with pytest.raises(Conflict, match="not in the event stream yet"):
        await store.upkeep.delete_job(done.id)
    assert await driver.state(done.id) is State.DONE
    while (page := await store.stream.changes_after(position, 3, 1 << 20)).items:
        position = page.position
    await store.stream.move_mark(position, term)
    assert await driver.delete(done.id) is State.DONE
    assert await driver.prune(driver.clock.now()) == 1
    gone = (await store.stream.changes_after(position, 10, 1 << 20)).items
    assert [(one.job_id, one.key_freed) for one in gone if isinstance(one, JobDeleted)] == [
        (done.id, True),
        (other.id, False),
    ]


async def test_without_a_stream_nothing_is_kept(driver: Driver):
    done = await driver.brought_to(State.DONE)
    assert await driver.delete(done.id) is State.DONE
    term, store = await driver.term(), driver.store
    await store.stream.begin(term)
    later = await driver.brought_to(State.DONE)
    await store.stream.end(term)
    assert await store.stream.lag() is None
    driver.clock.advance(100.0)
    assert await driver.prune(driver.clock.now()) == 1
    await store.stream.begin(term)
    assert later.id not in {
        item.job_id for item in await driver.all_changes() if isinstance(item, JobDeleted)
    }


async def test_a_queue_comes_before_its_jobs_and_its_changes_in_order(driver: Driver):
    term, store = await driver.term(), driver.store
    await store.stream.begin(term)
    await driver.queue("new", capacity=5, priority_weights={9: 2, 0: 1}, ttl=5.0)
    await driver.submit(queue="new")
    await store.queues.pause("new", True)
    await store.queues.pause("new", True)  # no change
    await store.queues.pause("new", False)
    await store.queues.update("new", {"retry_base": 2.5, "retry_max": 9.0, "ttl": None})
    await store.queues.update("new", {"retry_base": 2.5})  # no change
    (seq,) = await store.queues.unfinished("new", 10)
    await driver.do(Transition.dropped_with_queue(seq))
    assert await store.queues.delete("new") == 0
    items = await driver.all_changes(page=1)
    changes = [item for item in items if isinstance(item, QueueEvent) and item.queue.name == "new"]
    assert [(one.change, one.queue.paused) for one in changes] == [
        (QueueChange.CREATED, False),
        (QueueChange.CHANGED, True),
        (QueueChange.CHANGED, False),
        (QueueChange.CHANGED, False),
        (QueueChange.DELETED, False),
    ]
    figures = [(one.queue.retry_base, one.queue.retry_max, one.queue.ttl) for one in changes]
    assert figures == [(None, None, 5.0)] * 3 + [(2.5, 9.0, None)] * 2
    assert changes[0].queue.priority_weights == {9: 2, 0: 1}
    assert changes[0].queue.created_at == driver.clock.now()
    first = next(n for n, item in enumerate(items) if isinstance(item, JobEvent))
    assert items.index(changes[0]) < first


async def test_the_lag_counts_what_is_there_to_be_published(driver: Driver):
    """Not what was removed before there was a stream, be it the latest."""
    term, store = await driver.term(), driver.store

    async def lag() -> tuple[int, float]:
        found = await store.stream.lag()
        assert found is not None
        return found.events, found.seconds

    async def publish(position: Position) -> Position:
        while (page := await store.stream.changes_after(position, 3, 1 << 20)).items:
            position = page.position
        await store.stream.move_mark(position, term)
        return position

    await driver.brought_to(State.DONE)
    latest = await driver.brought_to(State.DONE)
    await driver.delete(latest.id)
    position = await store.stream.begin(term)
    driver.clock.advance(2.0)
    assert await lag() == (4 + 1, 2.0)  # the events of a job, and its queue
    position = await publish(position)
    assert await lag() == (0, 0.0)
    await driver.assigned()
    await store.queues.pause("q", True)
    driver.clock.advance(1.0)
    assert await lag() == (2 + 1, 1.0)
    await publish(position)
    assert await lag() == (0, 0.0)


async def test_a_cancel_is_told_once(driver: Driver):
    await driver.store.stream.begin(await driver.term())
    flagged = await driver.running()
    for _ in range(2):
        assert await driver.store.jobs.request_cancel(flagged.seq)
    told = [item for item in await driver.all_changes() if isinstance(item, CancelRequested)]
    assert [(one.job_id, one.version) for one in told] == [(flagged.id, 3)]


async def test_queues_come_before_jobs_that_were_there_before_the_stream(driver: Driver):
    await driver.queue("other")
    await driver.submit(queue="other")
    await driver.store.stream.begin(await driver.term())
    first, second, third = await driver.all_changes()
    assert isinstance(first, QueueEvent)
    assert isinstance(second, QueueEvent)
    assert {first.queue.name, second.queue.name} == {"q", "other"}
    assert isinstance(third, JobEvent)


async def test_what_is_handed_back_is_not_a_retry_that_waits(driver: Driver):
    """Although the job has a time at which it expires."""
    assignment = await driver.assigned(ttl=60.0)
    await driver.do(Transition.handed_back(assignment.seq, assignment.lease))
    events = [item for item in await driver.all_changes() if isinstance(item, JobEvent)]
    assert [item.failed for item in events if item.failed is not None] == [Failed(0)]


async def test_a_page_has_a_size(driver: Driver):
    await driver.store.stream.begin(await driver.term())
    for _ in range(5):
        await driver.submit(b"x" * 10_000)
    items, position, pages = [], BEGINNING, 0
    while (page := await driver.store.stream.changes_after(position, 100, 25_000)).items:
        position = page.position
        items += page.items
        pages += 1
        assert sum(isinstance(item, JobEvent) for item in page.items) <= 3
    assert pages >= 2
    assert sum(isinstance(item, JobEvent) for item in items) == 5
    assert (await driver.store.stream.changes_after(BEGINNING, 100, 1)).items  # never nothing


@pytest.mark.req("jq:FR-036")
async def test_an_event_tells_of_its_own_time_however_late_it_is_read(driver: Driver):
    """What became of the job since then has no part in it."""
    job_id = await driver.submit(delay=1.0, key="k", max_retries=1)
    await driver.after(1.0)
    run_at = (await driver.job(job_id)).run_at
    due: list[float | None] = []
    began: list[float | None] = []
    for _ in range(2):
        assignment = await driver.claim_one()
        await driver.start(assignment)
        began.append(driver.clock.now())
        driver.clock.advance(0.25)
        due.append((await driver.fail(assignment)).due)
        await driver.after(60.0)
    job = await driver.job(job_id)
    assert job.state is State.DEAD_LETTERED
    await driver.do(Transition.retried_by_hand(job.seq))
    await driver.store.stream.begin(await driver.term())
    events = [item for item in await driver.all_changes() if isinstance(item, JobEvent)]
    assert events[0].created is not None
    assert events[0].created.spec.run_at == run_at  # although the job has none any more
    failed = [item.failed for item in events if item.failed is not None]
    assert [one.next_retry_at for one in failed] == due
    assert due[0] is not None
    assert due[1] is None  # given up
    assert [one.started_at for one in failed] == began
    assert [one.retry_count for one in failed] == [0, 1]
    (dead,) = [item.finished for item in events if item.finished is not None]
    assert dead.retry_count == 1


# -- whose record it is ------------------------------------------------------------------------


def by(writer: Writer | None) -> Message:
    """A record that is in the topics already."""
    item = QueueEvent(QueueChange.CREATED, Queue(name="theirs"), 1, 1.0)
    identity = Identity(writer.store, writer.generation) if writer else Identity("x")
    (message,) = Topics().of_store(identity)(item)
    return message if writer else message._replace(headers=None)


@pytest.mark.req("sch:REPLAY")
@pytest.mark.parametrize("writer", [Writer("another", "1"), None], ids=["another", "unnamed"])
async def test_another_stores_topics_are_not_published_to(
    driver: Driver, relays: Relays, caplog: pytest.LogCaptureFixture, writer: Writer | None
):
    term, publisher, counts = await driver.term(), FakePublisher(), Counts()
    publisher.log.append(by(writer))
    relay = relays.start(driver.store, term, publisher, observer=counts)
    await driver.brought_to(State.DONE)  # jobs go on
    await until(lambda: counts.refused)
    health = await relay.health()
    assert not health.ok
    for word in ("jq-ctl replay", "kafka.topic_jobs", "Nothing is published", "events behind"):
        assert word in health.detail
    assert [one.levelname for one in caplog.records if "is published" in one.message] == ["ERROR"]
    assert len(publisher.log) == 1
    publisher.log.clear()  # the operator has removed the topics
    await until(lambda: not counts.refused)
    await caught_up(driver.store)


@pytest.mark.req("sch:REPLAY")
async def test_a_store_goes_on_in_its_own_topics(driver: Driver, relays: Relays):
    term, publisher = await driver.term(), FakePublisher()
    for _ in range(2):
        relay = relays.start(driver.store, term, publisher)
        await driver.brought_to(State.DONE)
        await until(lambda: len(publisher.event_ids()) >= 4)
        await caught_up(driver.store)
        await relay.stop()
    assert len(set(publisher.event_ids())) == 8
    known = await driver.store.stream.identity()
    assert await publisher.writers() == {Writer(known.store, "1")}


@pytest.mark.req("sch:REPLAY")
async def test_a_later_life_of_the_store_elsewhere_ends_the_stream_of_this_one(
    driver: Driver, relays: Relays
):
    term, publisher, counts = await driver.term(), FakePublisher(), Counts()
    known = await driver.store.stream.identity()
    publisher.log.append(by(Writer(known.store, "2-ab")))
    relays.start(driver.store, term, publisher, observer=counts)
    await until(lambda: counts.refused)
    assert len(publisher.log) == 1


@pytest.mark.req("sch:REPLAY")
async def test_standbys_say_that_the_record_is_anothers(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(relay_module, "_PROBE_EVERY", 0.01)
    term, publisher = await driver.term(), FakePublisher()
    publisher.log.append(by(Writer("another", "1")))
    await driver.store.stream.begin(term)
    await driver.submit()
    driver.clock.advance(1.0)
    relay = Relay(publisher)
    relay.start(driver.store.stream, lambda: None)
    try:
        async with patience.timeout(PATIENCE):
            while "store another" not in (health := await relay.health()).detail:
                await asyncio.sleep(0.01)
        assert not health.ok
    finally:
        await relay.stop()
