"""Checks that a comparison is fair, so that no report has to claim it."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobqueue.bench.records import RunRecord
from jobqueue.bench.targets import Fate, LoadWork, SeenJob, Target
from jobqueue.core.errors import Conflict, JobQueueError, Unavailable

# A busy machine may start jobs one after the other: then they are tried longer.
_TRIED_MS = (200, 800, 3_200, 12_800)
_SURE = 0.75  # of its time a job is sure to have its slot
_BUSY = 0.85  # all slots were in use for so long: there are no more of them
_PATIENCE = 60.0
_PAUSE = 0.1


class Unfair(Conflict):
    """The runs to be compared differ in more than the topology."""


async def check_slots(target: Target, slots: int, name: str) -> None:
    """Run more jobs than there may be slots, and see how many ran at once."""
    await does_a_job(target, name)
    most = 0
    for milliseconds in _TRIED_MS:
        found = await slots_in_use(target, 2 * slots, milliseconds)
        most = max(most, found.slots)
        if most >= slots or found.busy > _BUSY * found.slots:
            break
    if most != slots:
        raise Unfair(
            f"{name} ran {most} jobs at once and was to run {slots}: not the same capacity as the"
            " others have; nothing was measured"
        )


@dataclass(frozen=True, slots=True)
class InUse:
    """Slots that were in use at one moment at most, and on the average."""

    slots: int
    busy: float


async def slots_in_use(target: Target, jobs: int, milliseconds: int) -> InUse:
    """Return the most jobs that ran at once, by the start and end times of the servers."""
    work, seconds = LoadWork(milliseconds), milliseconds / 1000

    async def one() -> SeenJob:
        try:
            (job_id,) = await target.submit(work, [""])
            return await target.end(job_id, _PATIENCE)
        except JobQueueError:  # the slots that others show count
            return SeenJob(Fate.OPEN)

    ends = await asyncio.gather(*(one() for _ in range(jobs)))
    done = [seen for seen in ends if seen.fate is Fate.DONE]
    if not done:
        return InUse(0, 0.0)
    # Not to its end: a slot may be taken again before the end of its job is written.
    most = overlap([(seen.started, seen.started + _SURE * seconds) for seen in done])
    took = max(seen.ended for seen in done) - min(seen.started for seen in done)
    return InUse(most, len(done) * seconds / max(took, seconds))


def overlap(stretches: Sequence[tuple[float, float]]) -> int:
    """The most of these stretches of time that share a moment."""
    edges = sorted([(end, -1) for _, end in stretches] + [(begin, 1) for begin, _ in stretches])
    return max(itertools.accumulate(change for _, change in edges), default=0)


async def does_a_job(target: Target, name: str) -> None:
    """Wait until the topology does a job: a worker may still be on its way to its server."""
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            (job_id,) = await target.submit(LoadWork(), [""])
            fate = (await target.end(job_id, _PATIENCE)).fate
        except JobQueueError as error:
            how = error.message
        else:
            if fate is Fate.DONE:
                return
            how = f"a job of it is {fate}"
        if time.monotonic() > give_up:
            raise Unavailable(f"{name} does no job: {how}")
        await asyncio.sleep(_PAUSE)


def check_records(records: Iterable[RunRecord]) -> None:
    """Refuse to compare runs of one load that were not made alike."""
    loads: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        loads[json.dumps(record.cell.load, sort_keys=True)].append(record)
    for found in loads.values():
        ways = {(one.profile, one.warm_up, one.seconds) for one in found}
        if len(ways) > 1:
            raise Unfair(
                "runs of one load differ in profile, warm-up or seconds:"
                f" {', '.join(map(str, sorted(ways)))}; compare runs of one profile"
            )
        seeds: dict[int, set[int]] = defaultdict(set)
        for one in found:
            seeds[one.repetition].add(one.seed)
        if any(len(some) > 1 for some in seeds.values()):
            raise Unfair("runs of one load and repetition have different seeds")
        if len({one.cell.place for one in found}) > 1:
            raise Unfair("some runs were made with processes, others in containers")
