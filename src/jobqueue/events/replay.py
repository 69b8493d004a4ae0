"""Read all jobs and queues from the event stream's records in Kafka, and list missing records."""

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
    """Counts the records of one store. Times are the timestamps of Kafka's messages."""

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
    """Collects the jobs and queues that the records of the event stream describe.

    Jobs with missing records are left out of ``world`` and listed in ``damaged``. If ``only`` is
    not None, records of stores that it does not name are counted but not applied.
    """

    only: frozenset[str] | None = None
    stores: dict[str, Trace] = field(default_factory=dict)  # by id; "": records without an id
    ignored: list[str] = field(default_factory=list)  # places of messages that are not records
    world: World = field(default_factory=World)
    records: int = 0
    repeated: int = 0  # number of repeated records
    damaged: dict[str, str] = field(default_factory=dict)  # problems, by job id or place
    # By job: its first record that was read too early, and all its records since. Kafka keeps the
    # order within a partition only; a job changes its partition when its topic gets more of them.
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
            # A message without a writer may have replaced a record: then its job lacks a version.
            if raw.writer is None:
                self.ignored.append(raw.where)
            elif self._count(raw):  # a record of a newer version
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
        """Count a record for its store. Return True if records of the store are to be applied."""
        writer = raw.writer or _UNNAMED
        self.stores.setdefault(writer.store, Trace()).count(raw.at, writer.generation)
        return self.only is None or writer.store in self.only

    def _in_order(self, job_id: str, items: list[_OfJob]) -> None:
        """Apply the records of a job that were read before records which they follow."""
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
            assert isinstance(item, JobEvent)  # only a job's events can have a gap
            job_id = item.event.job_id
            self._leave_out(job_id, str(gap).removeprefix(f"job {job_id}: "))
        if isinstance(item, JobDeleted):
            self.damaged.pop(item.job_id, None)  # its missing records do not matter any more

    def _leave_out(self, name: str, why: str) -> None:
        self.damaged.setdefault(name, why)
        self.world.discard(name)

    @property
    def named(self) -> list[str]:
        """Return the ids of the stores that wrote records, in the order of their first record."""
        return sorted(filter(None, self.stores), key=lambda one: self.stores[one].first)

    def of_store(self, store: str) -> frozenset[str]:
        """Return the ids that select a store's records: the store's id, and ``""`` if needed.

        ``""`` selects records that name no store. These belong to the store that wrote first. Raise
        InvalidArgument if no record names the store.
        """
        if store not in self.named:
            there = ", ".join(self.named) or "none (no record names its store)"
            raise InvalidArgument(
                "--store", f"the topics have no record of store {store!r}; stores found: {there}"
            )
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
                f"the topics hold the records of {len(found)} stores; name the store to rebuild"
                f" with --store:\n  {shown}"
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
            f"the event stream is damaged in {len(self.damaged)} places; to rebuild the store"
            " without the damaged jobs, give --skip-damaged:\n  " + "\n  ".join(shown)
        )


def _job_of(item: _OfJob) -> str:
    return item.event.job_id if isinstance(item, JobEvent) else item.job_id


def _turn(item: _OfJob) -> tuple[int, int]:
    """Return a sort key: the record's version, then its kind.

    A cancel request and a deletion have the version of the event before them, and follow it.
    """
    if isinstance(item, JobEvent):
        return item.event.version, 0
    return item.version, 1 if isinstance(item, CancelRequested) else 2
