"""What the stream has to know beside the events, and how far it has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.stream import (
    Created,
    DeadLetter,
    Failed,
    Finished,
    JobEvent,
    QueueChange,
    QueueEvent,
    StreamItem,
)
from jobqueue.stores.memory.keys import Keys
from jobqueue.stores.memory.records import Entry, Log, Record, event_of
from jobqueue.stores.positions import pack, unpack


class Outbox:
    """Changes that are no events, until the mark has passed them. Without a stream: nothing."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._entries: deque[tuple[int, StreamItem, float]] = deque()
        self._number = 0
        self.mark: int | None = None
        self.refused = 0

    def begin(self, queues: Iterable[Queue], flagged: Iterable[StreamItem], now: float) -> int:
        """Make the mark, unless it is there."""
        if self.mark is None:
            self.mark, self.refused = 0, 0
            for queue in queues:
                self._number += 1
                made = QueueEvent(QueueChange.CREATED, replace(queue), self._number, now)
                self._entries.append((pack(0, self._number), made, now))
            for item in flagged:
                self.put(item, now)
        return self.mark

    def resume(self, number: int, *, published: bool) -> None:
        """Number on from there; what has been published, the stream has got."""
        self.end()
        self._number = max(self._number, number)
        if published:
            self.mark, self.refused = pack(self._log.next_position() - 1, self._number), 0

    def end(self) -> None:
        """There is no stream any more."""
        self.mark = None
        self._entries.clear()

    def put(self, item: StreamItem, now: float) -> None:
        """Keep it for the stream, if there is one."""
        if self.mark is not None:
            self._number += 1
            place = pack(self._log.next_position() - 1, self._number)
            self._entries.append((place, item, now))

    def queue(self, change: QueueChange, queue: Queue, now: float) -> None:
        """A queue was changed."""
        self.put(QueueEvent(change, replace(queue), self._number + 1, now), now)

    def passed(self, record: Record) -> bool:
        """Whether the stream has got all of a job's events."""
        return self.mark is None or record.events[-1][-1] <= unpack(self.mark)[0]

    def move(self, position: int, refused: int) -> None:
        """The stream has come that far."""
        self.mark = position
        self.refused += refused
        while self._entries and self._entries[0][0] <= position:
            self._entries.popleft()

    def after(self, position: int) -> Iterator[tuple[int, Entry | StreamItem, float]]:
        """Events and entries in the order they were written, with their times."""
        ahead = (entry for entry in self._entries if entry[0] > position)
        held = next(ahead, None)
        for event in self._log.entries_after(unpack(position)[0]):
            place = pack(event[-1])
            while held is not None and held[0] < place:
                yield held
                held = next(ahead, None)
            yield place, event, event[5]
        if held is not None:
            yield held
            yield from ahead


def job_event(entry: Entry, record: Record, keys: Keys) -> JobEvent:
    """An event with the part of the job that it wrote."""
    item = JobEvent(event_of(entry))
    state, at, started_at, due = entry[3], entry[5], entry[10], entry[11]
    if entry[1] == 1:
        item.created = _created(record, at, keys)
    elif state is State.FAILED:
        item.failed = Failed(_retries(record, entry[1]), started_at, due)
    elif state is State.DONE:
        item.finished = Finished(record.retry_count, record.started_at, record.result)
    elif state is State.DEAD_LETTERED:
        item.finished = Finished(_retries(record, entry[1]))
        item.letter = DeadLetter(record.spec.type, record.spec.payload)
        if record.version == entry[1]:  # otherwise it came back by hand
            item.finished.started_at = record.started_at
            item.finished.cancel_requested = record.cancel_requested
    return item


def _created(record: Record, at: float, keys: Keys) -> Created:
    spec = record.spec
    return Created(
        seq=record.seq,
        spec=spec,
        created_at=record.created_at,
        expires_at=None if spec.ttl is None else at + spec.ttl,
        key_expires_at=keys.expiry(spec.queue, spec.stored_key, record.id),
    )


def _retries(record: Record, version: int) -> int:
    """Retries before that version, since the job was last sent back by hand."""
    count = 0
    for entry in record.events[: version - 1]:
        if entry[4] is Reason.RETRY_DUE:
            count += 1
        elif entry[4] is Reason.MANUAL_RETRY:
            count = 0
    return count
