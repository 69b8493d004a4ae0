"""Publish the store's changes to the event stream (the relay), in order and at least once.

The relay runs at the leader, under the leader's term. It reads the changes after the mark (the
position up to which changes are published), and gives them to the publisher. When Kafka has stored
them, the relay moves the mark past them. If the leader dies before it moves the mark, the next
leader publishes some changes again, and no change is lost. Readers recognise a repeated record by
its event id.

A job waits for the relay only if its worker learns of jobs by hints, because the relay also
publishes the hints.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from jobqueue.core.errors import JobQueueError
from jobqueue.core.identity import Identity, Writer
from jobqueue.core.job import ComponentHealth
from jobqueue.core.observer import Observer, reach
from jobqueue.core.store import EventStream, Lag, Position, Term, TermEnded
from jobqueue.core.stream import Changes, StreamItem
from jobqueue.core.waiting import GrowingPause, is_set_within
from jobqueue.events.pace import Pace
from jobqueue.events.publisher import Message, Publisher, PublishFailed, Refused
from jobqueue.events.topics import Topics

_log = logging.getLogger("jobqueue.events")
_PAGE = 2_000  # records read at once
_PAGE_BYTES = 8 << 20
_AHEAD = 4  # pages under way
_INTERVAL = 0.25  # between two reads: claims and some writes of other servers do not wake the relay
_GATHER = 0.02  # a pause after a small page, so that many writes become one page
_GATHER_HINTS = 0.005  # the same pause if jobs wait for the relay's hints
_SMALL = _PAGE // 4
_SLICE = 200  # records encoded before other tasks may run: about a millisecond
_STANDBY = 0.2
_ACK_PATIENCE = 5.0  # seconds without an acknowledgement, after which a failure is logged
_LOOK = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LAST_ACKS = 2.0  # seconds to wait for acknowledgements at a stop
_LAG_EVERY = 5.0
_PROBE_EVERY = 10.0  # a standby probes the stream
_NO_JOB_WAITS = "jobs go on, and their events wait in the store"


@dataclass(slots=True)
class _Flight:
    acks: asyncio.Future[list[Refused]]
    position: Position
    topics: Counter[str]
    refused: int  # records that could not be encoded


class AnothersRecord(Exception):
    """Raised if the topics hold records of another store: nothing may be published to them."""


class Relay:
    """Implements ``core.stream.StreamRunner``: publishes changes while its server leads."""

    def __init__(
        self, publisher: Publisher, topics: Topics | None = None, observer: Observer | None = None
    ) -> None:
        self._publisher = publisher
        self._topics = topics or Topics()
        self._yields = self._topics.dispatch is None  # if False, jobs wait for the relay's hints
        self._gather = _GATHER if self._yields else _GATHER_HINTS
        self._observer = observer or Observer()
        self._pace = Pace()
        self._wake = asyncio.Event()
        self._stopping = False
        self._leading = False
        self._why = ""  # the reason why nothing is published; "": no problem
        self._away = ""  # the problem of Kafka or the topics that a standby has found
        self._told = False  # the present problem has been logged
        self._refused = False  # the topics hold another store's records
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, stream: EventStream, term: Callable[[], Term | None]) -> None:
        self._stream = stream
        self._term = term
        self._stopping = False
        self._tasks = [
            asyncio.create_task(self._run(), name="jobqueue-relay"),
            asyncio.create_task(self._measure(), name="jobqueue-relay-lag"),
            asyncio.create_task(self._watch(), name="jobqueue-relay-watch"),
        ]

    async def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        tasks, self._tasks = self._tasks, []
        if tasks:
            await asyncio.wait(tasks[:1], timeout=_LAST_ACKS)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._publisher.close()

    def wake(self) -> None:
        self._wake.set()

    def flows(self) -> bool:
        return not self._why

    async def health(self) -> ComponentHealth:
        where = self._publisher.address
        try:
            lag = await self._stream.lag()
        except JobQueueError as error:
            return ComponentHealth(
                "kafka", False, f"{where}; cannot read the lag of the event stream: {error}"
            )
        shown = _shown(lag)
        if self._why:
            return ComponentHealth(
                "kafka", False, f"{where}: {self._why}; {_NO_JOB_WAITS}; {shown}"
            )
        if lag is not None and lag.refused:
            return ComponentHealth("kafka", False, f"{where}; {shown}")
        if self._leading:
            return ComponentHealth("kafka", True, f"{where}; {shown}")
        if self._away:
            where = f"{where}: {self._away}"
        detail = f"{where}; {shown}; another server publishes"
        return ComponentHealth("kafka", not self._away, detail)

    # -- one life ----------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = GrowingPause(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not self._stopping:
            term = self._term()
            if term is None:
                self._stand_by()
                await asyncio.sleep(_STANDBY)
                continue
            moved = False
            try:
                moved = await self._publish(term)
            except TermEnded:
                await self._rest(_STANDBY)
            except AnothersRecord as error:
                self._refuse(str(error))
            except PublishFailed as error:
                self._observer.publish_failed(self._topics.jobs, 1)
                self._fail(str(error))
            except JobQueueError as error:
                self._fail(str(error))
            except Exception:
                self._fail("an unexpected error, which the log describes")
                _log.exception(
                    "unexpected error in the relay of the event stream to %s; trying again",
                    self._publisher.address,
                )
            finally:
                await self._publisher.close()
            if moved:
                pause.reset()
            if self._why and not self._stopping:
                await pause.wait()

    async def _publish(self, term: Term) -> bool:
        """Publish changes until the term is over or the relay stops.

        Return True if Kafka has acknowledged any page of changes.
        """
        position = await self._stream.begin(term)
        self._leading = True  # already before Kafka answers, so that the lag is measured
        await self._publisher.open()
        messages = self._topics.of_store(await self._checked())
        self._accepted()
        moved = False
        flying: deque[_Flight] = deque()
        reading: asyncio.Task[Changes] | None = None
        try:
            while self._term() == term and not self._stopping:
                self._wake.clear()
                began = time.monotonic()
                page = await (reading or self._read(position))
                position, reading = page.position, None
                # After a large page more changes wait: read them while this page is published.
                if len(page.items) > _SMALL:
                    reading = asyncio.create_task(self._read(position))
                await reach("relay.read")
                if page.items:
                    flying.append(await self._send(page, messages))
                    await reach("relay.sent")
                while flying and (not page.items or len(flying) >= _AHEAD or flying[0].acks.done()):
                    await self._settle(flying, term)
                    moved = True
                if reading is None:
                    self._pace.caught_up()
                if not page.items:
                    self._recovered()
                    await self._rest(_INTERVAL)
                elif reading is None:
                    await asyncio.sleep(self._gather)
                elif self._yields and self._wake.is_set():  # the store was written meanwhile
                    await asyncio.sleep(self._pace.rest(time.monotonic() - began))
            while flying:
                await self._settle(flying, term)
        except PublishFailed:
            if moved:  # return True, so that the pauses between retries start short again
                self._observer.publish_failed(self._topics.jobs, 1)
                self._fail("the connection has to be opened again")
                return True
            raise
        finally:
            for flight in flying:
                flight.acks.cancel()
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])
        return moved

    async def _checked(self) -> Identity:
        """Return the store's identity; raise AnothersRecord if another store wrote to the topics.

        Two stores give the same numbers to different jobs. From a mixture of their records neither
        store could be rebuilt.
        """
        identity, writers = await self._stream.identity(), await self._publisher.writers()
        others = sorted(str(one) for one in writers if not identity.goes_on_from(one))
        if others:
            here = Writer(identity.store, identity.generation)
            raise AnothersRecord(
                f"the topics {', '.join(self._topics.all)} hold the records of {'; '.join(others)};"
                f" this server uses {here}. Nothing is published, so that the records of"
                " several stores are not mixed. If the store that wrote these records was lost,"
                " stop all servers and workers and rebuild that store with `jq-ctl replay`"
                " (docs/replay.md). To go on without the records, name new topics in"
                " kafka.topic_jobs, kafka.topic_dead_letters and kafka.topic_queues"
            )
        return identity

    async def _read(self, position: Position) -> Changes:
        return await self._stream.changes_after(position, _PAGE, _PAGE_BYTES)

    async def _send(
        self, page: Changes, messages_of: Callable[[StreamItem], list[Message]]
    ) -> _Flight:
        messages: list[Message] = []
        refused = 0
        for first in range(0, len(page.items), _SLICE):
            await asyncio.sleep(0)  # let other tasks run
            with self._pace.stretch():
                for item in page.items[first : first + _SLICE]:
                    try:
                        messages += messages_of(item)
                    except (TypeError, ValueError) as error:  # the change cannot be encoded
                        refused += 1
                        self._alarm(Refused(self._topics.jobs, item.event_id, str(error)))
        counts = Counter(message.topic for message in messages)
        return _Flight(self._publisher.send(messages), page.position, counts, refused)

    async def _settle(self, flying: deque[_Flight], term: Term) -> None:
        """Wait until the oldest page is acknowledged; move the mark past all acknowledged pages."""
        await self._acked(flying[0], term)
        refused = 0
        done: list[_Flight] = []
        # Stop at the first page that failed: the pages before it need not be published again.
        while flying and _safe(flying[0].acks):
            flight = flying.popleft()
            for one in flight.acks.result():
                self._alarm(one)
                flight.topics[one.topic] -= 1
                refused += 1
            refused += flight.refused
            done.append(flight)
        await reach("relay.acked")
        await self._stream.move_mark(done[-1].position, term, refused)
        for flight in done:
            for topic, count in flight.topics.items():
                self._observer.published(topic, count)

    async def _acked(self, flight: _Flight, term: Term) -> None:
        since = time.monotonic()
        while not flight.acks.done():
            await asyncio.wait([flight.acks], timeout=_LOOK)
            if flight.acks.done():
                break
            if self._term() != term:
                raise TermEnded
            waited = time.monotonic() - since
            if self._publisher.trouble or waited > _ACK_PATIENCE:
                for topic, count in flight.topics.items():
                    self._observer.publish_failed(topic, count)
                self._fail(self._publisher.trouble or f"no answer for {waited:.0f} s")
        flight.acks.result()
        self._recovered()

    # -- logs and metrics ----------------------------------------------------------------------

    def _fail(self, why: str) -> None:
        self._why = why
        if not self._told:
            self._told = True
            where = self._publisher.address
            _log.warning("nothing is published to Kafka at %s: %s; %s", where, why, _NO_JOB_WAITS)

    def _refuse(self, why: str) -> None:
        if not self._refused:
            self._refused = self._told = True
            self._observer.stream_refused(True)
            _log.error("nothing is published to Kafka at %s: %s", self._publisher.address, why)
        self._why = why

    def _accepted(self) -> None:
        if self._refused:
            self._refused = False
            self._observer.stream_refused(False)

    def _recovered(self) -> None:
        self._why = ""
        if self._told:
            self._told = False
            _log.info("events are published to Kafka at %s again", self._publisher.address)

    def _stand_by(self) -> None:
        if self._leading:
            self._leading = False
            self._observer.stream_lag(None)
        self._accepted()
        self._why = ""
        self._told = False

    def _alarm(self, refused: Refused) -> None:
        """Log and count a record that cannot be published: its job cannot be rebuilt."""
        self._observer.publish_failed(refused.topic, 1)
        _log.error(
            "cannot publish record %s to topic %s: %s; the event stream lacks this record, so that"
            " its job cannot be rebuilt",
            refused.event_id,
            refused.topic,
            refused.why,
            extra={"event_id": refused.event_id, "topic": refused.topic},
        )

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(_LAG_EVERY)
            if self._leading:
                try:
                    self._observer.stream_lag(await self._stream.lag())
                except JobQueueError as error:
                    _log.debug(
                        "cannot read the lag of the event stream from the store: %s; trying again"
                        " in %g s",
                        error,
                        _LAG_EVERY,
                    )

    async def _watch(self) -> None:
        """Check Kafka at intervals while another server leads, and keep the problem found.

        ``health`` shows the problem before this server becomes the leader.
        """
        while True:
            await asyncio.sleep(_PROBE_EVERY)
            try:
                if not self._leading:
                    await self._look_on()
                self._away = ""
            except (PublishFailed, AnothersRecord) as error:
                self._away = str(error)
            except JobQueueError as error:
                _log.debug(
                    "cannot read the lag of the event stream from the store: %s; trying again in"
                    " %g s",
                    error,
                    _PROBE_EVERY,
                )

    async def _look_on(self) -> None:
        await self._publisher.probe()
        lag = await self._stream.lag()
        if lag is not None and lag.seconds > _PROBE_EVERY:
            # A long lag: the leader may be refused because another store wrote to the topics.
            await self._checked()

    async def _rest(self, seconds: float) -> None:
        if await is_set_within(self._wake, seconds) and not self._stopping:
            await asyncio.sleep(self._gather)


def _safe(acks: asyncio.Future[list[Refused]]) -> bool:
    return acks.done() and not acks.cancelled() and acks.exception() is None


def _shown(lag: Lag | None) -> str:
    if lag is None:
        return "nothing was published yet"
    text = "up to date"
    if lag.events:
        text = f"{lag.events} events behind, the oldest for {lag.seconds:.1f} s"
    if lag.refused:
        text += f"; {lag.refused} records were refused and are missing from the stream"
    return text
