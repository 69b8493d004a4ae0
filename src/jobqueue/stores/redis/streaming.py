"""Read the changes for the event stream from Redis, and keep the mark of the stream.

Changes that are not events are in an outbox. Fields of a job that later transitions may change are
written with the event (``more``). The other fields are read from the job's document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jobqueue.core import stream
from jobqueue.core.errors import Unavailable
from jobqueue.core.identity import Identity, identity_of, new_store_id
from jobqueue.core.job import Event
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Lag, Position, Term
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.documents import Fields, Value, fields, moment, number, place_of, text
from jobqueue.stores.redis.runner import ScriptRunner
from jobqueue.stores.redis.schedules import schedule_of
from jobqueue.stores.rows import pack, unpack
from jobqueue.stores.schedule_rows import read_state

_PAGE = 500  # of one script, because Redis does nothing else meanwhile
_WORKERS = {f"worker_{change.name.lower()}".encode(): change for change in stream.WorkerChange}
_QUEUES = {f"queue_{change.name.lower()}".encode(): change for change in stream.QueueChange}
_SCHEDULES = {
    f"schedule_{change.name.lower()}".encode(): change for change in stream.ScheduleChange
}


class RedisStream:
    """Implements ``core.store.EventStream``."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner
        # The identity of the store whose positions are valid. If Redis is emptied, positions begin
        # again at 0.
        self._store: tuple[str, str] | None = None

    async def events_after(self, position: Position, limit: int) -> list[tuple[Position, Event]]:
        event, _ = unpack(position)
        found: list[Any] = await self._runner.command(
            "events_after",
            "XRANGE", f"{self._runner.prefix}events", f"({event}-0", "+", "COUNT", limit,
        )  # fmt: skip
        return [(pack(place_of(place)[0]), documents.event(fields(flat))) for place, flat in found]

    async def begin(self, term: Term) -> Position:
        said = await self._runner.write_under(term, "begin_stream", new_store_id())
        self._store = said[2].decode(), said[3].decode()
        return pack(int(said[0]), int(said[1]))

    async def end(self, term: Term) -> None:
        await self._runner.write_under(term, "end_stream")

    async def changes_after(self, position: Position, limit: int, size: int) -> stream.Changes:
        found = stream.Changes([], position)
        while len(found.items) < limit and (size > 0 or not found.items):
            event, entry = unpack(found.position)
            wanted = min(_PAGE, limit - len(found.items))
            rows = await self._runner.read(
                "changes", (str(event), str(entry), wanted, max(size, 1), self._store)
            )
            if rows is None:
                raise Unavailable(
                    f"{self._runner.location} lacks events that were read from it before: it was"
                    " emptied, or a replica that had not received them took over; the stream"
                    " begins again at its mark"
                )
            for place, *rest in rows:
                item = _item(place_of(place), *rest)
                found.items.append(item)
                found.position = pack(*place_of(place))
                size -= stream.bytes_of(item)
            if len(rows) < wanted:
                break
        return found

    async def identity(self) -> Identity:
        said = await self._runner.read("identity", (new_store_id(),))
        return identity_of(*(part.decode() for part in said))

    async def move_mark(self, position: Position, term: Term, refused: int = 0) -> None:
        event, entry = unpack(position)
        await self._runner.write_under(term, "move_mark", str(event), entry, refused)

    async def lag(self) -> Lag | None:
        said = await self._runner.read("stream_lag")
        if said is None:
            return None
        count, oldest, now, refused = said
        return Lag(int(count), max(0.0, float(now) - float(oldest)), int(refused))


def _item(
    place: tuple[int, int], flat: Sequence[bytes], parts: Sequence[Value] = ()
) -> stream.StreamItem:
    """Return the stream item in a row of ``changes`` in ``scripts/stream.lua``."""
    found = fields(flat)
    return _entry(place[1], found) if b"kind" in found else _job_event(found, parts)


def _job_event(found: Fields, parts: Sequence[Value]) -> stream.JobEvent:
    event = documents.event(found)
    more: dict[str, Any] = json.loads(found[b"more"]) if found[b"more"] else {}
    created = letter = result = None
    if event.version == 1:
        created = _created(event, more.get("run_at"), parts)
    elif event.to_state is State.DEAD_LETTERED:
        kind, payload = parts
        letter = stream.DeadLetter(text(kind) or "", payload or b"")
    elif event.to_state is State.DONE:  # the last event of a job
        retry_count, started_at, result = parts
        more = {"retry_count": int(retry_count or 0), "started_at": number(started_at)}
    made = stream.job_event(
        event,
        more.get("retry_count", 0),
        more.get("started_at"),
        more.get("due"),
        more.get("cancel_requested", False),
        created=created,
        result=result,
        letter=letter,
    )
    if "partition" in more:
        made.route = stream.Route(more["partition"], more["incarnation"])
    return made


def _created(event: Event, run_at: float | None, parts: Sequence[Any]) -> stream.Created:
    seq, created_at, *spec, key_expires_at = parts
    planned = None if run_at is None else float(run_at)
    asked = documents.spec(event.queue.encode(), planned, *spec)
    return stream.Created.at(event.at, int(seq), asked, moment(created_at), number(key_expires_at))


def _entry(entry: int, found: Fields) -> stream.StreamItem:
    """Return the stream item for an entry of the outbox."""
    kind, at = found[b"kind"], float(found[b"at"])
    if kind in _QUEUES:
        return stream.QueueEvent(_QUEUES[kind], documents.queue(found), entry, at)
    if kind in _SCHEDULES:
        return _schedule(_SCHEDULES[kind], entry, at, found)
    if kind in _WORKERS:
        worker_id = found[b"worker_id"].decode()
        return stream.WorkerEvent(_WORKERS[kind], worker_id, int(found[b"incarnation"]), at)
    job_id, queue = found[b"job_id"].decode(), found[b"queue"].decode()
    if kind == b"repeated":
        route = stream.Route(int(found[b"partition"]), int(found[b"incarnation"]))
        seq, attempt = int(found[b"seq"]), int(found[b"attempt"])
        worker_id = found[b"worker_id"].decode()
        return stream.AssignmentRepeated(job_id, queue, seq, attempt, worker_id, route, at)
    version = int(found[b"version"])
    if kind == b"cancel":
        return stream.CancelRequested(job_id, queue, version, at)
    return stream.JobDeleted(job_id, queue, version, at, found[b"key_freed"] == b"1")


def _schedule(
    change: stream.ScheduleChange, entry: int, at: float, found: Fields
) -> stream.ScheduleEvent:
    name, revision, state = found[b"name"], found[b"revision"], found[b"state"]
    schedule = None
    if b"definition" in found:
        definition, payload = found[b"definition"], found[b"payload"]
        schedule = schedule_of(name, revision, definition, state, payload)
    return stream.ScheduleEvent(
        change, name.decode(), entry, at, read_state(state), int(revision), schedule
    )
