"""What it means that two stores hold the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from jobqueue.core.errors import KeyConflict
from jobqueue.core.job import Event, Job, JobSpec, SubmitStatus, TimeQuery
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueStats
from jobqueue.core.schedule import Schedule
from jobqueue.core.store import JobFilter, Store
from tests.stores.driver import new

_MICROSECOND = 1e-6


@dataclass
class Content:
    """All that a store shows."""

    jobs: list[Job]
    histories: dict[str, list[Event]]
    stats: list[QueueStats]
    lists: dict[tuple[str, ...], list[str]]  # ids, by what was asked for
    unfinished: dict[str, list[int]]
    held: list[tuple[int, str, State, bool]]
    schedules: list[Schedule]


async def content_of(store: Store) -> Content:
    jobs = await all_jobs(store)
    stats = await store.queues.stats()
    names = sorted({job.queue for job in jobs} | {one.queue.name for one in stats})
    return Content(
        jobs,
        {job.id: await store.reads.history(job.id) for job in jobs},
        stats,
        await _lists(store, names),
        {name: sorted(await store.queues.unfinished(name, 1_000)) for name in names},
        sorted(
            (one.seq, one.worker_id, one.state, one.cancel_requested)
            for one in await store.workers.held()
        ),
        await store.schedules.get([one.name for one in await store.schedules.page("", 1_000)]),
    )


async def assert_same(expected: Content, store: Store) -> None:
    """Every job in every field, its history, all lists, queues and their figures."""
    found = await content_of(store)
    assert found.jobs == expected.jobs
    assert found.histories == expected.histories
    assert_same_figures(found.stats, expected.stats)
    assert found.lists == expected.lists
    assert found.unfinished == expected.unfinished
    assert found.held == expected.held  # leases are new
    assert found.schedules == expected.schedules
    for job in expected.jobs[::10]:
        assert await store.reads.get(job.id) == job


async def _lists(store: Store, names: list[str]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        for state in State:
            page = await store.reads.list_jobs(JobFilter(queue=name, states=(state,), limit=500))
            found[name, state.name] = [job.id for job in page]
        for ascending in (True, False):
            wanted = TimeQuery(
                queue=name, type="taskqueue.v1", ascending=ascending, offset=2, limit=20
            )
            page = await store.reads.list_by_time(wanted)
            found[name, "by time", str(ascending)] = [job.id for job in page]
    return found


def assert_same_figures(found: list[QueueStats], expected: list[QueueStats]) -> None:
    """Counts are exact. The stream tells when attempts began and ended, not what their workers
    measured; and a database may keep a queue's time of creation to the microsecond."""
    for one, other in zip(found, expected, strict=True):
        assert replace(one.queue, created_at=0.0) == replace(other.queue, created_at=0.0)
        assert one.queue.created_at == pytest.approx(
            other.queue.created_at, abs=_MICROSECOND, rel=0.0
        )
        assert one.depth == other.depth
        assert (one.processed, one.succeeded, one.failed, one.timed) == (
            other.processed,
            other.succeeded,
            other.failed,
            other.timed,
        )
        assert one.run_seconds == pytest.approx(other.run_seconds, abs=0.001)


async def all_jobs(store: Store) -> list[Job]:
    jobs: list[Job] = []
    before: int | None = None
    while page := await store.reads.list_jobs(JobFilter(before_seq=before, limit=500)):
        jobs += page
        before = page[-1].seq
    return jobs


async def submitted_again(store: Store, specs: list[JobSpec]) -> list[tuple[str, str]]:
    """What becomes of the same submits: the job under each key, or that the key was free. And of
    other payloads under the keys that were not."""
    results = (await store.jobs.submit(new(*specs))).results
    taken = [n for n, result in enumerate(results) if result.status is SubmitStatus.DUPLICATE]
    answers = [
        (result.status.value, result.job_id if n in taken else "")
        for n, result in enumerate(results)
    ]
    altered = [replace(specs[n], payload=specs[n].payload + b"!") for n in taken]
    for result in (await store.jobs.submit(new(*altered))).results:
        assert isinstance(result.error, KeyConflict)
        answers.append((result.status.value, result.job_id))
    return answers
