"""Unique jobs on Redis: several servers at once."""

from __future__ import annotations

import asyncio
import random

from jobqueue.core.job import SubmitStatus, Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import Claim, JobFilter
from jobqueue.core.unique import UniqueKey
from tests.stores.driver import new, spec

ACCEPTED, EXISTING = SubmitStatus.ACCEPTED, SubmitStatus.EXISTING


async def test_of_equal_jobs_at_two_servers_one_is_accepted(open_store):
    stores = [await open_store(), await open_store()]
    keys = [f"k{n}" for n in range(20)]

    async def submit(store, order) -> list[tuple[str, SubmitStatus, str]]:
        jobs = new(*(spec(unique=UniqueKey(key=key)) for key in order))
        results = (await store.jobs.submit(jobs)).results
        return [(key, one.status, one.job_id) for key, one in zip(order, results, strict=True)]

    answers = await asyncio.gather(
        *(submit(store, keys[::step]) for store in stores for step in (1, -1) for _ in range(3))
    )
    found = [one for answer in answers for one in answer]
    assert sorted(key for key, status, _ in found if status is ACCEPTED) == sorted(keys)
    assert {status for _, status, _ in found} == {ACCEPTED, EXISTING}
    assert len({(key, job_id) for key, _, job_id in found}) == len(keys)


async def test_replacements_beside_claims_at_several_servers_leave_one_that_waits(open_store):
    stores = [await open_store(), await open_store()]
    draw = random.Random(11)
    taken: list[str] = []
    over = asyncio.Event()

    async def submit(store) -> None:
        for n in range(15):
            keys = draw.sample(range(6), 4)
            jobs = new(
                *(
                    spec(
                        b"%d" % n,
                        unique=UniqueKey(key=f"k{key}", scope="waiting", on_conflict="replace"),
                    )
                    for key in keys
                )
            )
            results = (await store.jobs.submit(jobs)).results
            assert {one.status for one in results} == {ACCEPTED}

    async def claim(store) -> None:
        while not over.is_set():
            got = await store.jobs.claim([Claim(("q",), ["w"] * draw.randrange(1, 4))])
            taken.extend(job.id for job in got)
            await store.jobs.apply(
                [Transition.succeeded(job.seq, job.lease, b"r", 0.0) for job in got]
            )
            await asyncio.sleep(0.001)

    claiming = [asyncio.create_task(claim(store)) for store in stores]
    await asyncio.gather(*(submit(store) for store in stores for _ in range(2)))
    over.set()
    await asyncio.gather(*claiming)
    assert len(taken) == len(set(taken))
    jobs = await stores[0].reads.list_jobs(JobFilter(limit=500))
    assert len(jobs) == 2 * 2 * 15 * 4
    assert {job.id for job in jobs if job.state is State.DONE} == set(taken)
    dead = {job.reason for job in jobs if job.state is State.DEAD_LETTERED}
    assert dead <= {Reason.SUPERSEDED}
    waiting = [job.spec.unique for job in jobs if job.state is State.PENDING]
    assert len({one.key for one in waiting if one is not None}) == len(waiting)
