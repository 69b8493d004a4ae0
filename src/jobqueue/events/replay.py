"""All jobs and queues read from the record in Kafka, with an account of missing records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jobqueue.core.errors import Conflict, InvalidArgument
from jobqueue.core.identity import Identity, Writer, successor
from jobqueue.core.rebuild import World, unplaced
from jobqueue.core.stream import CancelRequested, JobDeleted, JobEvent, StreamItem
from jobqueue.events.codec import UnknownRecord, decode

if TYPE_CHECKING:
    from jobqueue.events.record import Raw, Record

_SHOWN = 5
_UNNAMED = Writer()
_OfJob = JobEvent | CancelRequested | JobDeleted


@dataclass(slots=True)
class Trace:
    """The records of one store. Times are Kafka's."""

    records: int = 0
    first: float = float("inf")
    last: float = 0.0
    generations: set[str] = field(default_factory=set)

    def count(self, at: float, generation: str) -> None:
        self.records += 1
        self.first, self.last = min(self.first, at), max(self.last, at)
        self.generations.add(generation)


@dataclass(slots=True)
class Replay:
    """The result of reading a record. Jobs with missing records are left out and listed.

    With ``only``, records of other stores are counted but not applied.
    """

    only: frozenset[str] | None = None
    stores: dict[str, Trace] = field(default_factory=dict)  # by id; "": records that name none
    ignored: list[str] = field(default_factory=list)  # places of messages that are no records
    world: World = field(default_factory=World)
    records: int = 0
    repeated: int = 0  # records
    damaged: dict[str, str] = field(default_factory=dict)  # problems, by job or place
    # Records of jobs of which one was read too early: Kafka keeps the order in a partition only,
    # and a job changes its partition when its topic gets more of them.
    _early: dict[str, list[_OfJob]] = field(default_factory=dict)

    def read(self, record: Record, told: Callable[[int], None]) -> None:
        for where, why in record.cut_off.items():
            self.damaged[where] = why
        for page in record.messages():
            for raw in page:
                self._take(raw)
            told(self.records)
        for job_id, items in self._early.items():
            self._in_order(job_id, items)
        self._early.clear()
        for job_id, why in unplaced(self.world).items():
            self._leave_out(job_id, why)

    def _take(self, raw: Raw) -> None:
        self.records += 1
        try:
            item = decode(raw.value)
        except UnknownRecord as unknown:
            if raw.writer is None:  # if it replaces a record, its job has a gap
                self.ignored.append(raw.where)
            elif self._count(raw):  # of a newer version
                name = raw.key.decode(errors="replace") or raw.where
                self._leave_out(name, f"{raw.where}: {unknown}")
            return
        if not self._count(raw):
            return
        if isinstance(item, _OfJob):
            job_id = _job_of(item)
            if job_id in self._early or self.world.early(item):
                self._early.setdefault(job_id, []).append(item)
                return
        self.add(item)

    def _count(self, raw: Raw) -> bool:
        """Count a record of its store; returns False if its store is not wanted."""
        writer = raw.writer or _UNNAMED
        self.stores.setdefault(writer.store, Trace()).count(raw.at, writer.generation)
        return self.only is None or writer.store in self.only

    def _in_order(self, job_id: str, items: list[_OfJob]) -> None:
        """Apply the records of a job that were read too early, after all records are read."""
        items.sort(key=_turn)
        for item in items:
            if isinstance(item, CancelRequested) and self.world.early(item):
                self._leave_out(job_id, f"version {item.version} is missing")
            else:
                self.add(item)

    def add(self, item: StreamItem) -> None:
        try:
            if not self.world.add(item):
                self.repeated += 1
        except LookupError as gap:
            assert isinstance(item, JobEvent)  # only events have an order
            job_id = item.event.job_id
            self._leave_out(job_id, str(gap).removeprefix(f"job {job_id}: "))
        if isinstance(item, JobDeleted):
            self.damaged.pop(item.job_id, None)  # its missing records do not matter any more

    def _leave_out(self, name: str, why: str) -> None:
        self.damaged.setdefault(name, why)
        self.world.discard(name)

    @property
    def named(self) -> list[str]:
        """The ids of the stores that left records, in order of their first record."""
        return sorted(filter(None, self.stores), key=lambda one: self.stores[one].first)

    def of_store(self, store: str) -> frozenset[str]:
        """Return the ids in a store's records: records without an id belong to the first store."""
        if store not in self.named:
            there = ", ".join(self.named) or "none is named"
            raise InvalidArgument("--store", f"{store!r} has no record here; there are: {there}")
        return frozenset((store, "")) if store == self.named[0] else frozenset((store,))

    def identity(self) -> Identity:
        taken = {one: found for one, found in self.stores.items() if self._wanted(one)}
        store = next(filter(None, taken), "")
        return successor(store, set().union(*(found.generations for found in taken.values())))

    def _wanted(self, store: str) -> bool:
        return self.only is None or store in self.only

    def check_one_store(self) -> None:
        """Raise Conflict if the records of several stores were applied."""
        found = [one for one in self.named if self._wanted(one)]
        if len(found) > 1:
            shown = "\n  ".join(f"{one}: {self._shown(one)}" for one in found)
            raise Conflict(
                f"the topics hold the records of {len(found)} stores; name the one to rebuild with"
                f" --store:\n  {shown}"
            )

    def _shown(self, store: str) -> str:
        found = self.stores[store]
        first, last = (
            datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            for at in (found.first, found.last)
        )
        return f"{found.records} records, {first} to {last}"

    def check(self) -> None:
        if not self.damaged:
            return
        shown = [f"{name}: {why}" for name, why in list(self.damaged.items())[:_SHOWN]]
        if len(self.damaged) > _SHOWN:
            shown.append(f"and {len(self.damaged) - _SHOWN} more")
        raise Conflict(
            f"the record is damaged in {len(self.damaged)} places; --skip-damaged leaves out the"
            " jobs that are concerned:\n  " + "\n  ".join(shown)
        )


def _job_of(item: _OfJob) -> str:
    return item.event.job_id if isinstance(item, JobEvent) else item.job_id


def _turn(item: _OfJob) -> tuple[int, int]:
    """Return the order of a job's record: those without a version follow their event."""
    if isinstance(item, JobEvent):
        return item.event.version, 0
    return item.version, 1 if isinstance(item, CancelRequested) else 2
