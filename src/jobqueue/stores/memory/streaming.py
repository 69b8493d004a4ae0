"""Read the changes for the event stream from memory, and keep the mark of the stream."""

from __future__ import annotations

from itertools import islice

from jobqueue.core import stream
from jobqueue.core.decide import event_of
from jobqueue.core.identity import Identity
from jobqueue.core.job import Event
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Lag, Position, Term
from jobqueue.core.stream import (
    CancelRequested,
    Changes,
    Created,
    DeadLetter,
    JobEvent,
    bytes_of,
)
from jobqueue.stores.memory.contents import MemoryPart, Placed
from jobqueue.stores.rows import pack, unpack


class MemoryStream(MemoryPart):
    """Implements ``core.store.EventStream``."""

    async def events_after(self, position: Position, limit: int) -> list[tuple[Position, Event]]:
        found = islice(self._log.events_after(unpack(position)[0]), limit)
        return [(pack(event[-1]), event_of(event)) for event in found]

    async def begin(self, term: Term) -> Position:
        self._check_term(term)
        now = self._clock.now()
        queues = [queue.settings for queue in self._queues.values()]
        flagged = [
            CancelRequested(record.id, record.spec.queue, record.version, now)
            for record in self._contents.held.values()
            if record.cancel_requested
        ]
        schedules = self._contents.schedules.values()
        return pack(*self._log.begin(queues, schedules, flagged, now))

    async def end(self, term: Term) -> None:
        self._check_term(term)
        self._log.end()

    async def changes_after(self, position: Position, limit: int, size: int) -> Changes:
        self._keys.expire(self._clock.now())
        found = Changes([], position)
        for place, one, _ in self._log.after(unpack(position)):
            if len(found.items) == limit or size <= 0:
                break
            item = self._job_event(one) if isinstance(one, tuple) else one
            found.items.append(item)
            found.position = pack(*place)
            size -= bytes_of(item)
        return found

    def _job_event(self, placed: Placed) -> JobEvent:
        event, record = event_of(placed), self._contents.jobs[placed[0]]
        spec = record.spec
        retry_count, started_at, due, cancelled = placed[10:14]
        created = letter = None
        if event.version == 1:
            key = self._keys.find(spec.queue, spec.stored_key)
            expires_at = key[2] if key is not None and key[0] == record.id else None
            created = Created.at(event.at, record.seq, spec, record.created_at, expires_at)
        elif event.to_state is State.DEAD_LETTERED:
            letter = DeadLetter(spec.type, spec.payload)
        elif event.to_state is State.DONE:
            started_at = record.started_at  # no later attempt has changed it
        return stream.job_event(
            event, retry_count, started_at, due, cancelled,
            created=created, result=record.result, letter=letter,
        )  # fmt: skip

    async def move_mark(self, position: Position, term: Term, refused: int = 0) -> None:
        self._check_term(term)
        self._log.move(unpack(position), refused)

    async def lag(self) -> Lag | None:
        if self._log.mark is None:
            return None
        now = self._clock.now()
        times = [at for _, _, at in self._log.after(self._log.mark)]
        return Lag(len(times), max(0.0, now - min(times, default=now)), self._log.refused)

    async def identity(self) -> Identity:
        return self._contents.identity
