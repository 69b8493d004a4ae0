"""Rows for many jobs say what rows for each would say; an operator decides which are written."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import Any

import asyncpg
import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import TimeQuery, Transition
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim, JobFilter
from jobqueue.stores.postgres import connections, layout, runner
from jobqueue.stores.postgres.applying import _ROW
from jobqueue.stores.postgres.migrate import _NEW, bring_up, migrations
from jobqueue.stores.postgres.statements import LAYOUT, SQL
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience
from tests.cli import processes
from tests.stores.driver import new, spec, worker
from tests.stores.postgres.waiting import until

BATCHES = ("job_steps", "job_done")
RANGES = ("job_ready", "job_held")
STORM = 4.0  # seconds


async def mixed_history(store) -> list[str]:
    """Jobs in every state: plain ones in many batches, and all that leave the plain path."""
    await store.queues.create(Queue(name="other"))
    await store.workers.register(worker("v"))
    draw = random.Random(7)
    ids: list[str] = []
    plain = new(*(spec(b"%d" % n, ttl=900.0 if n > 40 else None) for n in range(140)))
    await store.jobs.submit(plain)
    ids += [job.id for job in plain]
    for count in (700, 1, 3, 40, 600):
        jobs = new(
            *(
                spec(
                    b"%d" % n,
                    queue=draw.choice(["q", "q", "other"]),
                    priority=draw.choice([0, 0, 5]),
                    max_retries=draw.choice([0, 3]),
                    delay=900.0 if draw.random() < 0.05 else None,
                    ttl=800.0 if draw.random() < 0.1 else None,
                    key=f"{count}-{n}" if draw.random() < 0.02 else None,
                )
                for n in range(count)
            )
        )
        await store.jobs.submit(jobs)
        ids += [job.id for job in jobs]
    held = []
    for wanted in (500, 20, 2, 300):
        slots = [draw.choice(["w", "w", "v"]) for _ in range(wanted)]
        held += await store.jobs.claim([Claim(("*",), slots)])
    started = held[:100]
    await store.jobs.apply([Transition.started(one.seq, one.lease) for one in started])
    ended = draw.sample(held, 600)
    for at in range(0, len(ended), 150):
        moves = []
        for one in ended[at : at + 150]:
            result = draw.choice([None, b"", b"r", b"x" * 90, b"y" * (2 * _ROW)])
            moves.append(
                draw.choice(
                    [Transition.succeeded(one.seq, one.lease, result, draw.random())] * 9
                    + [Transition.failed(one.seq, one.lease, "boom")]
                )
            )
        await store.jobs.apply(moves)
    left = [one for one in held if one not in ended]
    await store.jobs.apply([Transition(one.seq, Move.CANCEL) for one in left[:5]])
    await store.jobs.apply([Transition(one.seq, Move.HAND_BACK, one.lease) for one in left[5:9]])
    (again,) = await store.jobs.claim([Claim(("*",), ["v"])])
    await store.jobs.apply([Transition.succeeded(again.seq, again.lease, b"later", 0.1)])
    assert (await store.upkeep.delete_job(ended[3].id)) is not None
    return ids


async def told(store, db, ids: list[str]) -> dict[str, Any]:
    """Everything that can be asked of the store, of some jobs one by one."""
    some = random.Random(5).sample(ids, 200)
    pages: dict[str, Any] = {}
    for queue in (None, "q"):
        for state in State:
            wanted = JobFilter(queue=queue, states=(state,), limit=37)
            first = await store.reads.list_jobs(wanted)
            pages[f"{queue} {state}"] = first
            if first:
                wanted = JobFilter(queue=queue, states=(state,), limit=37, before_seq=first[-1].seq)
                pages[f"{queue} {state} next"] = await store.reads.list_jobs(wanted)
    by_time = TimeQuery(queue="q", type="", states=(State.DONE,), offset=3, limit=50)
    found, position = [], BEGINNING
    while (page := await store.stream.changes_after(position, 1_000, 1 << 20)).items:
        found += page.items
        position = page.position
    events, position = [], BEGINNING
    while read := await store.stream.events_after(position, 1_000):
        position = read[-1][0]
        events += [event for _, event in read]
    return {
        "jobs": [await store.reads.get(one) for one in some],
        "histories": [await store.reads.history(one) for one in some],
        "all": await store.reads.list_jobs(JobFilter(limit=100)),
        "pages": pages,
        "by time": await store.reads.list_by_time(by_time),
        "stats": await store.queues.stats(),
        "stream": sorted(found, key=lambda item: item.event_id),
        "events": sorted(events, key=lambda event: (event.job_id, event.version)),
        "views": [
            [tuple(row) for row in await db.fetch(f"SELECT * FROM {view} ORDER BY seq, {more}")]
            for view, more in (("jobs", "job_id"), ("job_events", "version"))
        ],
    }


async def counts(db, tables=BATCHES) -> list[int]:
    return [await db.fetchval(f"SELECT count(*) FROM {table}") for table in tables]


@pytest.mark.parametrize("few", [1, 16])
async def test_rows_for_many_jobs_say_the_same_as_rows_for_each(open_store, db, few):
    store = await open_store(few=few)
    ids = await mixed_history(store)
    assert min(await counts(db)) > 5
    assert min(await counts(db, RANGES)) > 0
    before = await told(store, db, ids)
    assert len(before["events"]) > 3_000
    assert len([item for item in before["stream"] if ":" in item.event_id]) > 3_000
    await layout.change(db, 2)
    assert min(await counts(db)) > 5
    assert await counts(db, RANGES) == [0, 0]
    between = await told(store, db, ids)
    await layout.change(db, 1)
    assert await counts(db) == [0, 0]
    after = await told(store, db, ids)
    for what, said in before.items():
        assert between[what] == said, what
        assert after[what] == said, what


async def test_a_new_database_begins_with_the_newest_layout(store, db):
    assert await layout.read(db) == _NEW
    with pytest.raises(InvalidArgument):
        await layout.change(db, LAYOUT + 1)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO queue_tally (queue, pending) VALUES (1, 1)",
        "INSERT INTO leader (holder, epoch, expires_at) VALUES (1, 1, now())"
        " ON CONFLICT (single) DO UPDATE SET holder = 1",
        "INSERT INTO workers (id, incarnation, hostname, pid, concurrency, queues, version, link,"
        " status, registered_at, last_seen)"
        " VALUES ('w', 1, 'h', 1, 1, '{q}', '', 1, 'ONLINE', now(), now())"
        " ON CONFLICT (id) DO UPDATE SET pid = 2",
    ],
)
async def test_a_server_that_knows_no_batches_cannot_write_beside_those_that_do(
    store, db, statement
):
    await store.leadership.lead(1, 60.0)
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute(statement)
    await layout.change(db, 1)
    await db.execute(statement)


async def waits(db, *ended: asyncio.Task[Any]) -> bool:
    """Return True if a backend waits for a lock, or one of these calls has ended."""
    waiting = await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return bool(waiting) or any(one.done() for one in ended)


async def submit_and_end(store, count: int) -> list[str]:
    await store.jobs.submit(jobs := new(*(spec() for _ in range(count))))
    held = await store.jobs.claim([Claim(("q",), ["w"] * count)])
    moves = [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in held]
    outcomes = (await store.jobs.apply(moves)).outcomes
    assert [outcome.applied for outcome in outcomes] == [True] * count
    return [job.id for job in jobs]


async def test_servers_go_on_while_the_layout_is_lowered_and_raised(open_store, postgres_dsn, db):
    stores = [await open_store(), await open_store()]
    over = asyncio.Event()

    async def work(store) -> int:
        jobs = 0
        while not over.is_set():
            await store.jobs.submit(new(*(spec() for _ in range(40))))
            held = await store.jobs.claim([Claim(("q",), ["w"] * 30)])
            moves = [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in held]
            outcomes = (await store.jobs.apply(moves)).outcomes
            assert all(outcome.applied for outcome in outcomes)
            jobs += 40
        return jobs

    working = [asyncio.create_task(work(store)) for store in stores]
    for wanted in (1, 2, 3, 2, 3, 1):
        await asyncio.sleep(0.3)
        await layout.change(db, wanted)
        await asyncio.sleep(0.3)
    over.set()
    jobs = sum(await asyncio.gather(*working))
    assert await counts(db) == [0, 0]
    assert await counts(db, RANGES) == [0, 0]
    assert await db.fetchval("SELECT count(*) FROM job_record") == jobs
    assert sum((await stores[0].queues.stats("q"))[0].depth.values()) == jobs
    per_job = "SELECT count(*) FROM job_event GROUP BY seq"
    wrong = f"SELECT count(*) FROM ({per_job}) AS e WHERE count NOT IN (1, 2, 4)"
    assert await db.fetchval(wrong) == 0
    await layout.change(db, LAYOUT)
    await submit_and_end(stores[0], 20)
    await submit_and_end(stores[0], 20)
    assert min(await counts(db)) > 0


async def test_jobs_that_an_interrupted_lowering_left_in_ranges_are_claimed(
    open_store, postgres_dsn, db, tmp_path
):
    store = await open_store()
    await store.jobs.submit(new(*(spec() for _ in range(2_500))))
    held = await store.jobs.claim([Claim(("q",), ["w"] * 100)])
    locking = await asyncpg.connect(postgres_dsn)
    transaction = locking.transaction()
    await transaction.start()
    await locking.execute("SELECT FROM job_ready WHERE nxt = 1024 FOR UPDATE")

    with processes.Service("ctl", "--url", postgres_dsn, "layout", "1", cwd=tmp_path) as lowering:
        await until(functools.partial(waits, db))
        lowering.process.kill()
        lowering.process.wait()
    assert await layout.read(db) == 1
    assert await counts(db, RANGES) == [2, 0]

    async def claim_all(stores) -> list[Any]:
        found: list[Any] = []
        while some := [
            job for one in stores for job in await one.jobs.claim([Claim(("q",), ["w"] * 400)])
        ]:
            found += some
        return found

    stores = [store, await open_store()]  # the second one has never known another layout
    held += await claim_all(stores)
    assert [one.seq for one in held] == [*range(1, 1_024), *range(2_048, 2_501)]
    await transaction.rollback()
    await locking.close()
    async with patience.timeout(30):
        # The process of PostgreSQL that served the killed one has the lock next, until it notices.
        while len(held) < 2_500:
            held += await claim_all(stores)
            await asyncio.sleep(0.01)
    assert sorted(one.seq for one in held) == list(range(1, 2_501))
    assert await counts(db, RANGES) == [0, 0]
    moves = [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in held]
    outcomes = (await stores[1].jobs.apply(moves)).outcomes
    assert all(outcome.applied for outcome in outcomes)
    await layout.change(db, 1)
    assert await counts(db) == [0, 0]
    (stats,) = await store.queues.stats("q")
    assert {state: count for state, count in stats.depth.items() if count} == {State.DONE: 2_500}


async def test_a_job_that_is_deleted_during_a_lowering_is_counted_once(store, postgres_dsn, db):
    """The job is deleted while the uncommitted lowering has given its end a row of its own."""
    ids = await submit_and_end(store, 20)
    lowering = await asyncpg.connect(postgres_dsn)
    transaction = lowering.transaction()
    await transaction.start()
    await layout.unpack_window(lowering, 0)
    removing = asyncio.create_task(store.upkeep.delete_job(ids[3]))
    await until(functools.partial(waits, db))
    await transaction.commit()
    await lowering.close()
    assert await removing is State.DONE
    (stats,) = await store.queues.stats("q")
    assert stats.depth[State.DONE] == 19
    assert await db.fetchval("SELECT count(*) FROM job_event") == 4 * 19
    assert await counts(db, ("job_ended", *BATCHES)) == [19, 0, 0]


async def test_two_deletions_that_meet_leave_no_steps(open_store, db, monkeypatch):
    store = await open_store(few=1)
    await store.jobs.submit(jobs := new(spec(), spec()))
    for one in await store.jobs.claim([Claim(("q",), ["w"] * 2)]):
        await store.jobs.apply([Transition.succeeded(one.seq, one.lease, None, 0.1)])
    assert await counts(db) == [2, 2]
    ask = connections._Asked.execute
    other: list[asyncio.Task[Any]] = []

    async def execute(self: Any, query: str, *asked: Any, **options: Any) -> Any:
        done = await ask(self, query, *asked, **options)
        if query == SQL["forget_steps"] and not other:  # before the first one commits
            other.append(asyncio.create_task(store.upkeep.delete_job(jobs[1].id)))
            await until(functools.partial(waits, db, *other))
        return done

    monkeypatch.setattr(connections._Asked, "execute", execute)
    assert await store.upkeep.delete_job(jobs[0].id) is State.DONE
    assert await other[0] is State.DONE
    assert await counts(db, ("job_record", *BATCHES)) == [0, 0, 0]


async def test_a_stretch_counts_events_and_not_numbers(store, db):
    await store.jobs.submit(new(*(spec() for _ in range(300))))
    held = await store.jobs.claim([Claim(("q",), ["w", "v", "v", "v"] * 75)])
    for few in (held[::3], held[1::100]):
        moves = [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in few]
        await store.jobs.apply(moves)
    events = await db.fetchval("SELECT count(*) FROM batch_event")
    assert events == 300 + 300 + 2 * 102
    last = await db.fetchval("SELECT max(xid) FROM job_done")
    asked: tuple[object, ...] = 0, last + 1, []
    assert await db.fetchval(SQL["end_of_stretch"], *asked, events - 1) == last
    assert await db.fetchval(SQL["end_of_stretch"], *asked, events) is None


async def test_results_share_rows_that_fit_into_a_page(store, db):
    count = 500
    await store.jobs.submit(new(*(spec() for _ in range(count))))
    held = await store.jobs.claim([Claim(("q",), ["w"] * count)])
    moves = [
        Transition.succeeded(one.seq, one.lease, b"x" * (n % 300), 0.1)
        for n, one in enumerate(held)
    ]
    await store.jobs.apply(moves)
    sizes = await db.fetch(
        "SELECT pg_column_size(d.*) AS size, cardinality(offs) FROM job_done AS d"
    )
    assert max(size for size, _ in sizes) < 8_160
    assert sum(jobs for _, jobs in sizes) == count
    for n in (0, 1, 250, 499):
        job = await store.reads.get(held[n].id)
        assert job.result == b"x" * (n % 300)


async def test_a_database_of_before_keeps_to_its_rows_until_it_is_raised(empty_postgres_dsn):
    db = await asyncpg.connect(empty_postgres_dsn)
    await bring_up(db, migrations()[:13])
    store = PostgresStore(empty_postgres_dsn)
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        await store.workers.register(worker(concurrency=1_000))
        await submit_and_end(store, 20)
        assert await layout.read(db) == 1
        assert await counts(db) == [0, 0]
        assert await db.fetchval("SELECT count(*) FROM job_event") == 80
        # A server of that version goes on beside it.
        await db.execute("INSERT INTO queue_tally (queue, pending) VALUES (1, 0)")
        await layout.change(db, 2)
        await submit_and_end(store, 20)
        await submit_and_end(store, 20)  # at the latest now it has heard of it
        assert min(await counts(db)) > 0
        jobs = await store.reads.list_jobs(JobFilter(states=(State.DONE,), limit=100))
        assert [job.seq for job in jobs] == list(range(60, 0, -1))
        for job in jobs:
            events = await store.reads.history(job.id)
            assert [event.version for event in events] == [1, 2, 3, 4]
    finally:
        await store.close()
        await db.close()


class Storm:
    """Several servers, many callers, everything at once; then the books are checked."""

    def __init__(self, stores, seed: int) -> None:
        self._stores = stores
        self._draw = random.Random(seed)
        self.accepted: list[str] = []
        self.results: dict[int, bytes] = {}  # of reports that were applied
        self._held: list[Any] = []
        self._old: list[Any] = []
        self.over = False

    def _some(self, most: int) -> list[Any]:
        """Take some of what is held, for one caller alone."""
        self._draw.shuffle(self._held)
        count = self._draw.randint(1, most)
        taken, self._held = self._held[:count], self._held[count:]
        self._old = (self._old + taken)[-500:]
        return taken

    async def submit(self, store) -> None:
        queues = [
            self._draw.choice(["q", "other"]) for _ in range(self._draw.choice([1, 5, 60, 300]))
        ]
        ttl = self._draw.choice([None, None, 600.0, 0.3])
        jobs = new(*(spec(queue=q, priority=self._draw.choice([0, 5]), ttl=ttl) for q in queues))
        await store.jobs.submit(jobs)
        self.accepted += [job.id for job in jobs]

    async def claim(self, store) -> None:
        slots = [self._draw.choice(["w", "v"]) for _ in range(self._draw.choice([1, 20, 90, 200]))]
        # Not "+= await": others take from the list meanwhile.
        claimed = await store.jobs.claim([Claim(("*",), slots)])
        self._held += claimed

    async def report(self, store) -> None:
        some = self._some(80)
        moves = []
        for one in some:
            result = b"%d" % self._draw.getrandbits(30)
            moves.append(
                self._draw.choice(
                    [Transition.succeeded(one.seq, one.lease, result, 0.0)] * 8
                    + [Transition.failed(one.seq, one.lease, "boom")]
                    + [Transition(one.seq, Move.HAND_BACK, one.lease)]
                )
            )
        # Reports that come twice, and under leases that are over.
        stale = self._draw.sample(self._old, min(5, len(self._old)))
        moves += [Transition.succeeded(one.seq, one.lease, b"stale", 0.0) for one in stale]
        await asyncio.gather(self._apply(store, moves), self._apply(self._stores[0], moves))

    async def _finish(self, store, some) -> None:
        moves = [Transition.succeeded(one.seq, one.lease, b"late", 0.0) for one in some]
        await self._apply(store, moves)

    async def _apply(self, store, moves) -> None:
        outcomes = (await store.jobs.apply(moves)).outcomes
        for move, outcome in zip(moves, outcomes, strict=True):
            if outcome.applied and outcome.state is State.DONE:
                assert move.seq not in self.results
                self.results[move.seq] = move.result or b""

    async def start(self, store) -> None:
        some = self._some(40)
        await store.jobs.apply([Transition.started(one.seq, one.lease) for one in some])
        self._held += some

    async def cancel(self, store) -> None:
        waiting = self._draw.sample(range(1, len(self.accepted) + 20), 3) if self.accepted else []
        moves = [Transition(one.seq, Move.CANCEL) for one in self._some(2)]
        await store.jobs.apply(moves + [Transition(seq, Move.CANCEL) for seq in waiting])

    async def lose(self, store) -> None:
        """A worker is lost while it reports; and what it holds is listed."""
        some = self._some(30)
        moves = [Transition.worker_lost(one.seq, one.lease, "gone") for one in some]
        await asyncio.gather(store.jobs.apply(moves), self._finish(self._stores[1], some))
        await store.workers.held(self._draw.choice(["w", "v"]))

    async def beat(self, store) -> None:
        some = self._some(20)
        leases = [one.lease for one in some]
        await asyncio.to_thread(store.workers.pulse, "w", 1, leases * 2, leases[:5] * 2)
        self._held += some

    async def promote(self, store) -> None:
        await store.jobs.apply((await store.upkeep.due(200)).transitions)

    async def blow(self, store) -> None:
        ways = [self.submit, self.claim, self.report, self.report, self.start, self.cancel,
                self.promote, self.lose, self.beat]  # fmt: skip
        while not self.over:
            await self._draw.choice(ways)(store)


@pytest.mark.parametrize("few", [1, 16])
async def test_after_a_storm_the_books_are_right(open_store, db, few, monkeypatch):
    # On a busy machine a slow answer would count as lost. A repeated report under the lease of one
    # that was written counts as written, too.
    monkeypatch.setattr(runner, "_ANSWER", 60.0)
    stores = [await open_store(few=few) for _ in range(3)]
    await stores[0].queues.create(Queue(name="other"))
    await stores[0].workers.register(worker("v"))
    storm = Storm(stores, few)
    callers = [asyncio.create_task(storm.blow(store)) for store in stores for _ in range(5)]
    await asyncio.sleep(STORM)
    storm.over = True
    await asyncio.gather(*callers)
    assert len(storm.results) > 100
    places = await db.fetch(
        "SELECT seq FROM job_live UNION ALL SELECT seq FROM job_ended"
        " UNION ALL SELECT seq FROM batch_end UNION ALL SELECT seq FROM ready_job"
        " UNION ALL SELECT seq FROM held_job"
    )
    assert len(places) == len({row[0] for row in places}) == len(storm.accepted)
    found = dict(await db.fetch("SELECT seq, result FROM batch_end"))
    found |= dict(await db.fetch("SELECT seq, result FROM job_ended WHERE state = 4"))
    assert found == storm.results
    gaps = (
        "SELECT count(*) FROM job_record AS r CROSS JOIN LATERAL ("
        " SELECT array_agg(version ORDER BY version) AS seen, array_agg(to_state ORDER BY version)"
        " AS states, array_agg(from_state ORDER BY version) AS froms"
        " FROM job_events_of(r.seq, r.seq >> 10 << 10)) AS e"
        " WHERE seen <> ARRAY(SELECT generate_series(1, cardinality(seen)))"
        " OR froms[2:] <> states[:cardinality(states) - 1]"
    )
    assert await db.fetchval(gaps) == 0
    states = dict(await db.fetch("SELECT status, count(*) FROM jobs GROUP BY status"))
    depth: dict[str, int] = {}
    for stats in await stores[0].queues.stats():
        for state, count in stats.depth.items():
            depth[state.name] = depth.get(state.name, 0) + count
    assert await db.fetchval("SELECT count(*) FROM job_done WHERE base IS NOT NULL") > 5
    assert {name: count for name, count in depth.items() if count} == states
