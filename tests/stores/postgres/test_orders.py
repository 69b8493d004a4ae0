"""Two statements that move the same plain jobs, in every order that READ COMMITTED allows.

A job must be in one place afterwards, and no statement may fail: each of them has to see what the
other one took, although its snapshot may be older.
"""

from __future__ import annotations

import asyncio
import functools
import re
from typing import Any

import asyncpg
import pytest

from jobqueue.core.store import Claim
from jobqueue.stores.postgres.connections import FIXED_PLANS
from jobqueue.stores.postgres.leases import bits, new_base, new_row_lease
from jobqueue.stores.postgres.statements import BATCH, CLAIM_MIXED, LAYOUT, SQL, array
from tests.stores.driver import new, spec
from tests.stores.postgres.waiting import until

pytestmark = pytest.mark.integration
_GATE = 4711  # an advisory lock
_EACH = 6  # jobs of a range, and of a held row


@pytest.fixture
def few() -> int:
    return 1


class Jobs:
    """Two ranges of jobs that wait, and two held rows of other jobs."""

    def __init__(self, ready: list[list[int]], held: list[list[Any]]) -> None:
        self.ready = ready
        self.held = held
        self.leases = {one.seq: one.lease for row in held for one in row}


async def make(store, other, db) -> Jobs:
    """Make jobs. ``other`` is a second store, whose numbers lie between the two ranges."""
    held = []
    for _ in range(2):
        await store.jobs.submit(new(*(spec() for _ in range(_EACH))))
        held.append(await store.jobs.claim([Claim(("q",), ["w"] * _EACH)]))
    ready = []
    for one in (store, other):
        await one.jobs.submit(new(*(spec() for _ in range(_EACH))))
        await one.jobs.submit(new(spec(delay=900.0)))
        (row,) = await db.fetch("SELECT nxt, hi FROM job_ready ORDER BY hi DESC LIMIT 1")
        ready.append(list(range(row[0], row[1] + 1)))
    return Jobs(ready, held)


Move = tuple[str, list[Any]]
"""A statement and its arguments."""


def claim(jobs: Jobs, upto: int, *, alone: bool) -> Move:
    """A claim of the first jobs of both ranges, as held rows or as live rows."""
    taken = [row[:upto] for row in jobs.ready]
    parts = [
        [row[-1] for row in jobs.ready],
        [row[0] for row in taken],
        [row[-1] for row in taken],
        [1, 2],
        [None if alone else new_base() for _ in taken],
        [1, 1],
        [row[0] for row in taken],
        [row[-1] for row in taken],
        [bits(row) for row in taken],
        [len(row) for row in taken],
        600.0,
        None,
    ]
    if not alone:
        return SQL["claim"], parts
    seqs = [(n, seq) for n, row in enumerate(taken, 1) for seq in row]
    columns = [[n for n, _ in seqs], [seq for _, seq in seqs]]
    return CLAIM_MIXED, [*parts, *columns, [new_row_lease() for _ in seqs], [1 for _ in seqs]]


def leave_ready(jobs: Jobs, *, whole: bool) -> Move:
    wanted = sorted([jobs.ready[0][1], jobs.ready[0][4], jobs.ready[1][2]])
    return (SQL if whole else BATCH)["leave_ready"], [wanted]


def leave_held(jobs: Jobs, places: list[int], *, by_lease: bool) -> Move:
    seqs = sorted([row[n].seq for row in jobs.held for n in places] + jobs.ready[1])
    return SQL["leave_held"], [seqs, [jobs.leases.get(n, 7) if by_lease else None for n in seqs]]


def start(jobs: Jobs, places: list[int]) -> Move:
    seqs = sorted(row[n].seq for row in jobs.held for n in places)
    leases = [jobs.leases[n] for n in seqs]
    return BATCH["start_held"], [array(seqs), array(leases), [0.1] * len(seqs), 10.0, None, None]


def finish(jobs: Jobs, places: list[int]) -> Move:
    """A report of both held rows."""
    rows = sorted(
        ([row[n] for n in places] for row in jobs.held), key=lambda r: r[0].lease - r[0].seq
    )
    count = len(places)
    return SQL["finish_held"], [
        [row[0].lease - row[0].seq for row in rows],
        [row[0].seq >> 10 << 10 for row in rows],
        [bits(one.seq for one in row) for row in rows],
        [None] * 2,
        [count] * 2,
        [0.5] * 2,
        [1, 2],
        [1, 2],
        [1, count + 1],
        [count, 2 * count],
        [one.seq & 1023 for row in rows for one in row],
        [0.1] * (2 * count),
        [None] * (2 * count),
        None,
    ]


OF_READY = {
    "claim some": lambda jobs: claim(jobs, 3, alone=False),
    "claim all": lambda jobs: claim(jobs, _EACH, alone=False),
    "claim as rows": lambda jobs: claim(jobs, 3, alone=True),
    "cut": lambda jobs: leave_ready(jobs, whole=False),
    "leave whole": lambda jobs: leave_ready(jobs, whole=True),
    "leave any": lambda jobs: leave_held(jobs, [1], by_lease=False),
}
OF_HELD = {
    "leave": lambda jobs: leave_held(jobs, [1, 2], by_lease=False),
    "leave all by lease": lambda jobs: leave_held(jobs, list(range(_EACH)), by_lease=True),
    "start": lambda jobs: start(jobs, [2, 3]),
    "finish": lambda jobs: finish(jobs, [2, 3, 4]),
    "finish all": lambda jobs: finish(jobs, list(range(_EACH))),
}
PAIRS = [
    (group[first], group[second])
    for group in (OF_READY, OF_HELD)
    for first in group
    for second in group
]


def gated(text: str) -> str:
    """Make a statement wait for the gate between its snapshot and its first lock."""
    gated, count = re.subn(
        r"\$1(::text)?::bigint\[\]",
        rf"(SELECT $1\1::bigint[] FROM pg_advisory_xact_lock({_GATE}))",
        text,
        count=1,
    )
    assert count
    return gated


async def waiting(db, backend: int) -> bool:
    asked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1"
    return bool(await db.fetchval(asked, backend))


async def check(db, jobs: Jobs) -> None:
    seqs = sorted([seq for row in jobs.ready for seq in row] + list(jobs.leases))
    places = await db.fetch(
        "SELECT seq FROM (SELECT seq FROM job_live UNION ALL SELECT seq FROM job_ended"
        " UNION ALL SELECT seq FROM batch_end UNION ALL SELECT seq FROM ready_job"
        " UNION ALL SELECT seq FROM held_job) AS p WHERE seq = ANY ($1::bigint[]) ORDER BY seq",
        seqs,
    )
    assert [row[0] for row in places] == seqs
    versions = await db.fetch(
        "SELECT seq, version FROM unnest($1::bigint[]) AS j(n)"
        " CROSS JOIN LATERAL job_events_of(j.n, j.n >> 10 << 10)", seqs,
    )  # fmt: skip
    assert len(versions) == len(set(versions))


@pytest.mark.parametrize("order", ["old snapshot", "waits", "waits for a rollback"])
async def test_of_two_moves_each_job_is_taken_once(open_store, postgres_dsn, db, order):
    store, other = await open_store(), await open_store()
    settings = {**FIXED_PLANS, "jobqueue.layout": str(LAYOUT)}
    one, two = [await asyncpg.connect(postgres_dsn, server_settings=settings) for _ in range(2)]
    pid = await two.fetchval("SELECT pg_backend_pid()")
    for first, second in PAIRS:
        jobs = await make(store, other, db)
        (text, asked), (later, asked_later) = first(jobs), second(jobs)
        if order == "old snapshot":
            await db.execute(f"SELECT pg_advisory_lock({_GATE})")
            running = asyncio.create_task(two.fetch(gated(later), *asked_later))
            await until(lambda: waiting(db, pid))
            await one.fetch(text, *asked)
            await db.execute(f"SELECT pg_advisory_unlock({_GATE})")
        else:
            transaction = one.transaction()
            await transaction.start()
            await one.fetch(text, *asked)
            running = asyncio.create_task(two.fetch(later, *asked_later))
            await until(functools.partial(done_or_waiting, running, db, pid))
            if order == "waits":
                await transaction.commit()
            else:
                await transaction.rollback()
        await running
        await check(db, jobs)
    await one.close()
    await two.close()


async def done_or_waiting(running: asyncio.Task[Any], db, pid: int) -> bool:
    return running.done() or await waiting(db, pid)
