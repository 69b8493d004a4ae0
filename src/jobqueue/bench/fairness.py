"""Check that the compared runs had equal conditions."""

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

# Durations of jobs. A busy machine starts jobs one after the other: then longer jobs are needed.
_TRIED_MS = (200, 800, 3_200, 12_800)
_SURE = 0.75  # the part of a job's duration in which the job certainly has its slot
_BUSY = 0.85  # slots that were in use for this share of the time are all slots
_PATIENCE = 60.0
_PAUSE = 0.1


class Unfair(Conflict):
    """Raised when compared runs differ in more than the topology."""


async def check_slots(target: Target, slots: int, name: str) -> None:
    """Raise Unfair unless the topology ``name`` runs exactly ``slots`` jobs at once.

    The check submits twice as many jobs and counts the jobs that ran at the same time.
    """
    await does_a_job(target, name)
    most = 0
    for milliseconds in _TRIED_MS:
        found = await slots_in_use(target, 2 * slots, milliseconds)
        most = max(most, found.slots)
        if most >= slots or found.busy > _BUSY * found.slots:
            break
    if most != slots:
        raise Unfair(
            f"{name} ran {most} jobs at once instead of {slots}, so its capacity differs from that"
            " of the other topologies; nothing was measured"
        )


@dataclass(frozen=True, slots=True)
class InUse:
    """Counts the slots in use: the most at one moment, and the average over time."""

    slots: int
    busy: float


async def slots_in_use(target: Target, jobs: int, milliseconds: int) -> InUse:
    """Submit ``jobs`` jobs of the given duration, and return how many slots they used.

    The result is computed from the start and end times that the servers report.
    """
    work, seconds = LoadWork(milliseconds), milliseconds / 1000

    async def one() -> SeenJob:
        try:
            (job_id,) = await target.submit(work, [""])
            return await target.end(job_id, _PATIENCE)
        except JobQueueError:  # the other jobs still show how many slots there are
            return SeenJob(Fate.OPEN)

    ends = await asyncio.gather(*(one() for _ in range(jobs)))
    done = [seen for seen in ends if seen.fate is Fate.DONE]
    if not done:
        return InUse(0, 0.0)
    # Only a part of the duration: a slot may be taken again before the job's end is written.
    most = overlap([(seen.started, seen.started + _SURE * seconds) for seen in done])
    took = max(seen.ended for seen in done) - min(seen.started for seen in done)
    return InUse(most, len(done) * seconds / max(took, seconds))


def overlap(stretches: Sequence[tuple[float, float]]) -> int:
    """Return the largest number of time spans that overlap at one moment."""
    edges = sorted([(end, -1) for _, end in stretches] + [(begin, 1) for begin, _ in stretches])
    return max(itertools.accumulate(change for _, change in edges), default=0)


async def does_a_job(target: Target, name: str) -> None:
    """Wait until the topology ``name`` has finished a job: a worker is then connected."""
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
            how = f"the state of its last job is {fate}"
        if time.monotonic() > give_up:
            raise Unavailable(f"{name} finished no job within {_PATIENCE:g} s: {how}")
        await asyncio.sleep(_PAUSE)


def check_records(records: Iterable[RunRecord]) -> None:
    """Raise Unfair if runs of one load differ in profile, durations, seeds or place."""
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
            raise Unfair(
                "runs of one load and repetition have different seeds; compare runs of one profile"
            )
        if len({one.cell.place for one in found}) > 1:
            raise Unfair("some runs used processes, others containers; compare runs of one --place")
