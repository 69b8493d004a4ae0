"""Two servers at work while connections are killed, or the database crashes; the checker judges."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from dataclasses import dataclass, field

import asyncpg
import pytest

from jobqueue.core.errors import JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.job import Job, SubmitStatus, Transition
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim, JobFilter, Rules
from jobqueue.fleet.backing import PrivatePostgres
from jobqueue.stores.postgres.statements import FEW
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience
from tests.history.checker import Evidence, Run, assert_kept
from tests.stores.driver import new, spec, worker

RULES = Rules(assignment_timeout=1.0)
KILLS = 40
ENOUGH = 100  # accepted jobs, however slow the machine is
BATCH = 12
CRASHES = 20


@dataclass
class Witness:
    """What callers were told."""

    accepted: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    confirmed: list[Run] = field(default_factory=list)


class Replica:
    """A server's store under load."""

    def __init__(
        self, store: PostgresStore, name: str, seen: Witness, chance: random.Random, batch: int
    ) -> None:
        self.store = store
        self._batch = batch
        self.name = name
        self._seen = seen
        self._chance = chance
        self._keys = itertools.count()

    async def submit(self) -> None:
        key = f"{self.name} {next(self._keys)}"
        jobs = new(
            *(spec(b"plain", max_retries=100) for _ in range(self._batch)),
            *(spec(b"keyed", key=key, max_retries=100) for _ in range(2)),
        )
        ids = {job.id for job in jobs}
        try:
            results = (await self.store.jobs.submit(jobs)).results
        except OutcomeUnknown:
            self._seen.unknown |= ids
            return
        except Unavailable:
            self._seen.refused |= ids
            return
        for job, result in zip(jobs, results, strict=True):
            if result.status is SubmitStatus.ACCEPTED:
                self._seen.accepted.add(job.id)
            elif isinstance(result.error, OutcomeUnknown):
                self._seen.unknown.add(job.id)
            else:
                self._seen.refused.add(job.id)

    async def work(self) -> int:
        """Claim some, and report each way that there is; reports are repeated until answered."""
        held = await self.store.jobs.claim([Claim(("q",), [self.name] * self._batch)])
        reports = []
        for one in held:
            fate = self._chance.random()
            if fate < 0.2:
                reports.append(Transition.failed(one.seq, one.lease, "boom", retry_after=0.0))
                continue
            if fate < 0.6:
                reports.append(Transition.started(one.seq, one.lease))
            reports.append(Transition.succeeded(one.seq, one.lease, b"r", 0.01))
        by_lease = {one.lease: one for one in held}
        while reports:
            with contextlib.suppress(JobQueueError):
                outcomes = (await self.store.jobs.apply(reports)).outcomes
                for asked, outcome in zip(reports, outcomes, strict=True):
                    if outcome.applied and outcome.state is State.DONE:
                        one = by_lease[asked.lease or 0]
                        self._seen.confirmed.append(Run(one.id, one.attempt))
                reports = []
        return len(held)

    async def sweep(self) -> None:
        due = await self.store.upkeep.due(500)
        if due.transitions:
            await self.store.jobs.apply(due.transitions)


async def kill(dsn: str, chance: random.Random, seen: Witness) -> None:
    """One of the stores' server processes after the other, until enough jobs came through."""
    db = await asyncpg.connect(dsn)
    kills = itertools.count()
    while next(kills) < KILLS or len(seen.accepted) <= ENOUGH:
        await asyncio.sleep(chance.uniform(0.0, 0.05))
        await db.execute(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'jobqueue'"
            " AND state <> 'idle' ORDER BY random() LIMIT 1) AS x"
        )
    await db.close()


async def crash(postgres: PrivatePostgres, chance: random.Random, seen: Witness) -> None:
    """The whole server, again and again; what was written without waiting for the disk is lost."""
    for _ in range(CRASHES):
        enough = len(seen.accepted) + 100
        async with patience.timeout(60):
            while len(seen.accepted) < enough:
                await asyncio.sleep(chance.uniform(0.0, 0.2))
        await asyncio.to_thread(postgres.stop, "immediate")
        await asyncio.to_thread(postgres.restart)


@pytest.mark.timeout(180)
@pytest.mark.req("jq:NFR-005", "jq:NFR-008")
@pytest.mark.parametrize(("seed", "few"), [(1, 16), (2, 16), (3, 1)])
async def test_killed_connections_cost_no_job_and_tell_no_lie(postgres_dsn, seed, few):
    await under_trouble(postgres_dsn, seed, few, BATCH, kill, postgres_dsn)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.req("jq:NFR-005", "jq:NFR-008")
async def test_crashes_of_the_database_cost_no_job_and_tell_no_lie(own_postgres):
    postgres = own_postgres()
    await under_trouble(postgres.dsn(), 4, FEW, 60, crash, postgres)


async def under_trouble(dsn, seed: int, few: int, batch: int, trouble, place) -> None:
    chance = random.Random(seed)
    seen = Witness()
    replicas = [
        Replica(PostgresStore(dsn, rules=RULES, few=few), name, seen, chance, batch)
        for name in ("one", "two")
    ]
    for replica in replicas:
        await replica.store.open()
        await replica.store.workers.register(worker(replica.name, concurrency=10_000))
    store = replicas[0].store
    await store.queues.create(Queue(name="q"))
    calm = asyncio.Event()

    async def again_and_again(*what) -> None:
        while not calm.is_set():
            for one in what:
                with contextlib.suppress(JobQueueError):
                    await one()
                # A claim that knows of nothing to claim waits for nobody: let the others go on.
                await asyncio.sleep(0)

    load = [
        asyncio.create_task(again_and_again(call))
        for replica in replicas
        for call in (replica.submit, replica.work, replica.work, replica.sweep)
    ]
    await trouble(place, chance, seen)
    calm.set()
    await asyncio.gather(*load)
    async with patience.timeout(60):
        while await store.reads.list_jobs(
            JobFilter(states=tuple(state for state in State if state not in TERMINAL), limit=1)
        ):
            for replica in replicas:
                await replica.work()
                await replica.sweep()
            await asyncio.sleep(0.01)
    events = []
    position = BEGINNING
    while page := await store.stream.events_after(position, 2_000):
        events += [event for _, event in page]
        position = page[-1][0]
    jobs: dict[str, Job] = {}
    before = None
    while found := await store.reads.list_jobs(JobFilter(before_seq=before, limit=1_000)):
        jobs |= {job.id: job for job in found}
        before = found[-1].seq
    depth = (await store.queues.stats("q"))[0].depth
    for replica in replicas:
        await replica.store.close()
    assert_kept(
        Evidence(
            events=events,
            accepted=seen.accepted,
            refused=seen.refused,
            confirmed=seen.confirmed,
            jobs=jobs,
            settled=True,
            dead_letters_allowed=False,
        )
    )
    assert set(jobs) <= seen.accepted | seen.unknown
    assert depth == {state: (len(jobs) if state is State.DONE else 0) for state in State}
