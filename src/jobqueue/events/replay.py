"""The record in Kafka as a world, with an account of what is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobqueue.core.errors import Conflict
from jobqueue.core.rebuild import World
from jobqueue.core.restore import unplaced
from jobqueue.core.stream import CancelRequested, JobDeleted, JobEvent, StreamItem
from jobqueue.events.codec import UnknownRecord, decode

if TYPE_CHECKING:
    from jobqueue.events.record import Raw, Record

_SHOWN = 5
_OfJob = JobEvent | CancelRequested | JobDeleted


@dataclass(slots=True)
class Replay:
    """What was read so far. Jobs with missing records are left out of the world, and named."""

    world: World = field(default_factory=World)
    records: int = 0
    repeated: int = 0  # that were there already
    damaged: dict[str, str] = field(default_factory=dict)  # what is wrong, by job or place
    # Records of jobs of which one was read too early. Kafka keeps the order in a partition only,
    # and a job changes its partition when its topic gets more of them.
    _early: dict[str, list[_OfJob]] = field(default_factory=dict)

    def read(self, record: Record, told: Callable[[int], None]) -> None:
        """Take everything."""
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
            where = f"{raw.topic}, partition {raw.partition}, offset {raw.offset}"
            self._leave_out(raw.key.decode(errors="replace") or where, f"{where}: {unknown}")
            return
        if isinstance(item, _OfJob):
            job_id = _job_of(item)
            if job_id in self._early or self.world.early(item):
                self._early.setdefault(job_id, []).append(item)
                return
        self.add(item)

    def _in_order(self, job_id: str, items: list[_OfJob]) -> None:
        """Take what was put aside of a job; all that there is of it has been read."""
        items.sort(key=_turn)
        for item in items:
            if isinstance(item, CancelRequested) and self.world.early(item):
                self._leave_out(job_id, f"version {item.version} is missing")
            else:
                self.add(item)

    def add(self, item: StreamItem) -> None:
        """Take the next record."""
        try:
            if not self.world.add(item):
                self.repeated += 1
        except LookupError as gap:
            assert isinstance(item, JobEvent)  # nothing else has to follow anything
            job_id = item.event.job_id
            self._leave_out(job_id, str(gap).removeprefix(f"job {job_id}: "))
        if isinstance(item, JobDeleted):
            self.damaged.pop(item.job_id, None)  # whatever was lost of it

    def _leave_out(self, name: str, why: str) -> None:
        self.damaged.setdefault(name, why)
        self.world.discard(name)

    def check(self) -> None:
        """Conflict if something is missing."""
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
    """A job's records by version: what came after an event bears its number."""
    if isinstance(item, JobEvent):
        return item.event.version, 0
    return item.version, 1 if isinstance(item, CancelRequested) else 2
