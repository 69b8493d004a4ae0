"""The hot statements find their rows by index, with ten rows and with very many.

No times: what is counted are the pages that each statement looked at.
"""

from __future__ import annotations

import contextlib

import asyncpg
import pytest

from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim, JobFilter
from jobqueue.stores.postgres import heads, holding, streaming
from jobqueue.stores.postgres.heads import kind_of
from tests.stores.driver import accept, new, spec, worker
from tests.stores.postgres.plans import FILL, watch

CANDIDATES = "AS k(queue, prio, kind, floor, most)"

FILL_RANGES = """
WITH r AS (
    INSERT INTO job_record (id, queue, type, payload, priority, max_retries, created_at)
    SELECT gen_random_uuid(), 1, 'filling', 'x', 0, 3, 1e9 FROM generate_series(1, 20000)
    RETURNING seq
)
INSERT INTO job_held (base, lo, at, due, queue, worker, open)
SELECT (1::bigint << 62) + min(seq), min(seq) >> 10 << 10, 1e9, 4e9, 1, 1000 + (min(seq) >> 8),
       bit_or(set_bit(0::bit(1024), (seq & 1023)::int, 1))
FROM r GROUP BY seq >> 4 ORDER BY min(seq);  -- floors then read each page once, vacuumed or not

WITH r AS (
    INSERT INTO job_record (id, queue, type, payload, priority, max_retries, created_at)
    SELECT gen_random_uuid(), 1, 'filling', 'x', 0, 3, 1e9 FROM generate_series(1, 60000)
    RETURNING seq
)
INSERT INTO job_ready (hi, nxt, kind, expires_at, queue, prio)
SELECT max(seq), min(seq), kind_of('filling'), 4e9, 1, 9 FROM r GROUP BY seq >> 3;
"""

# A full look through an index then seems to cost one page, however long the table has become.
COUNTED_EMPTY = """
ANALYZE;
UPDATE pg_class SET reltuples = 0
WHERE relname LIKE 'job_live%' OR relname LIKE 'job_ready%' OR relname LIKE 'job_held%';
"""


async def everything(store) -> None:
    """What a server does all day."""
    await accept(store, 3)
    await store.jobs.submit(new(spec(key="k"), spec(key="k"), spec(key="l", delay=60.0)))
    held = await store.jobs.claim([Claim(("q",), ["w"] * 4)])
    assert len(held) == 4
    one, two, three, four = held
    await store.jobs.apply([Transition.started(one.seq, one.lease)])
    await store.jobs.apply([Transition.succeeded(two.seq, two.lease, None, 0.1)])
    await store.jobs.apply([Transition.failed(three.seq, three.lease, "boom", retryable=False)])
    await store.jobs.apply([Transition(three.seq, Move.RETRY_BY_HAND)])
    await store.jobs.apply([Transition(four.seq, Move.HAND_BACK, four.lease)])
    await store.jobs.request_cancel(one.seq)
    store.workers.pulse("w", 1, [one.lease])
    await store.workers.held("w")
    await store.upkeep.due(100)
    term = await store.leadership.lead(1, 60.0)
    await store.workers.retire_silent(60.0, term)
    await store.upkeep.prune_done(1.0, 100, term)
    assert await store.reads.get(two.id)
    assert await store.reads.history(two.id)
    await store.reads.list_jobs(JobFilter(limit=20))
    await store.reads.list_jobs(JobFilter(queue="q", limit=20))
    await store.reads.list_jobs(JobFilter(queue="q", states=(State.DEAD_LETTERED,), limit=20))
    assert await store.upkeep.delete_job(two.id) is State.DONE
    known = [Claim(("q",), ["w"], types=frozenset({"known", "rare"}))]
    assert await store.jobs.claim(known) == []
    await store._claiming._ask([(1, 9, kind_of(type)) for type in ("known", "", "rare")])
    await store.queues.waiting_types(100)
    for _ in range(2):  # at once, and after a look
        (one,) = (await store.jobs.submit(new(spec(type="known")), known)).assigned
        await store.jobs.apply([Transition.succeeded(one.seq, one.lease, None, 0.1)])


@pytest.mark.req("jq:NFR-012")
@pytest.mark.parametrize(
    ("counted", "few"),
    [
        ("analyzed", 16),
        ("without statistics", 16),
        ("while it was empty", 16),
        ("analyzed", 1),
        ("while it was empty", 1),
    ],
)
async def test_no_statement_reads_a_table_from_end_to_end(open_store, db, monkeypatch, counted):
    plans = await watch(db, monkeypatch)
    store = await open_store()
    await everything(store)  # plans are made and kept while there are ten rows
    await store.jobs.claim([Claim(("q",), ["w"] * 100)])
    small = len(plans.seen)
    assert small > 30
    assert await db.fetchval("SELECT max(id) FROM queues") == 1
    await db.execute(FILL)
    await db.execute(FILL_RANGES)
    if counted == "analyzed":
        await db.execute("ANALYZE")
    if counted == "while it was empty":  # as autovacuum leaves a queue that had nothing to do
        await db.execute(COUNTED_EMPTY)
    store._claiming._heads.forget()  # nobody told it of these, and it looks by itself only at times
    plans.seen.clear()
    await everything(store)  # by the plans that were made for ten rows
    fresh = await open_store()
    await everything(fresh)  # by new ones
    assert len(plans.seen) > 2 * 30
    for plan in plans.seen:
        assert not plan.scanned, (plan.scanned, plan.query)
        # A scan of the smallest of these tables would be more than a thousand.
        assert plan.buffers < 500, (plan.buffers, plan.query, plan.indexes)


@pytest.mark.parametrize("counted", ["analyzed", "without statistics"])
async def test_progress_is_found_by_its_lease(open_store, db, monkeypatch, counted):
    plans = await watch(db, monkeypatch)
    store = await open_store()
    await store.workers.register(worker())
    await accept(store, 20)
    held = await store.jobs.claim([Claim(("q",), ["w"] * 20)])
    await store.jobs.apply([Transition.started(one.seq, one.lease) for one in held])
    told = {one.lease: Progress.of(0.5, "half") for one in held}
    store.workers.pulse("w", 1, list(told), [], told)
    await db.execute(
        "INSERT INTO job_progress"
        " SELECT -n, -n, 0.1, 'of an attempt that is over', 0 FROM generate_series(1, 50000) AS n"
    )
    if counted == "analyzed":
        await db.execute("ANALYZE job_progress")
    plans.seen.clear()
    store.workers.pulse("w", 1, list(told), [], told)
    job = await store.reads.get(held[0].id)
    assert job.progress.text == "half"
    listed = await store.reads.list_jobs(JobFilter(states=(State.RUNNING,), limit=20))
    assert len([one for one in listed if one.progress is not None]) == 20
    assert len(plans.seen) > 4
    for plan in plans.seen:
        scanned = {
            node.get("Relation Name") for node in plan.nodes() if node["Node Type"] == "Seq Scan"
        }
        assert "job_progress" not in scanned, plan.query
        assert plan.buffers < 500, (plan.buffers, plan.query, plan.indexes)


# What many jobs leave behind in the index of what is held, while somebody's snapshot needs it.
HELD_ONCE = """
UPDATE job_live SET worker = (SELECT id FROM worker_name WHERE name = 'another') WHERE ready = 1;
UPDATE job_live SET worker = NULL WHERE ready = 1;
"""


@contextlib.asynccontextmanager
async def pinned(dsn):
    """A transaction that keeps dead rows from being removed."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("SELECT count(*) FROM queues")  # takes the snapshot
            yield
    finally:
        await connection.close()


@pytest.mark.req("jq:NFR-012")
async def test_looks_at_what_is_held_pass_over_what_was_held(
    open_store, db, postgres_dsn, monkeypatch
):
    monkeypatch.setattr(holding, "_SLOW", -1.0)  # as if every look had taken long,
    monkeypatch.setattr(holding, "_COSTLY", -1.0)
    monkeypatch.setattr(holding, "_SHARE", 0)  # and long ago
    plans = await watch(db, monkeypatch)
    store = await open_store()
    await everything(store)
    await accept(store)
    (one,) = await store.jobs.claim([Claim(("q",), ["another"])])  # it has a number now
    await store.jobs.apply([Transition.succeeded(one.seq, one.lease, None, 0.1)])
    await db.execute(FILL)
    async with pinned(postgres_dsn):
        await db.execute(HELD_ONCE)
        await db.execute(COUNTED_EMPTY)
        await everything(store)
        for one in (store, await open_store()):  # by old plans and by new ones
            await one.upkeep.due(100)
            plans.seen.clear()
            await one.upkeep.due(100)
            await one.workers.held()
            await one.workers.all()
            looks = plans.named("unnest($1::int[], $2::bigint[])")
            assert len(looks) == 3
            for plan in looks:
                assert plan.buffers < 500, (plan.buffers, plan.query, plan.indexes)


async def test_a_job_of_a_large_batch_is_not_compared_with_every_queue(open_store, db, monkeypatch):
    plans = await watch(db, monkeypatch)
    store = await open_store()
    names = [f"many-{n}" for n in range(50)]
    for name in names:
        await store.queues.create(Queue(name=name))
    plans.seen.clear()
    await store.jobs.submit(new(*(spec(queue=name) for name in names * 10)))
    (plan,) = plans.named("INSERT INTO job_record")
    compared = sum(node.get("Rows Removed by Join Filter", 0) for node in plan.nodes())
    assert compared == 0


@pytest.mark.req("jq:NFR-012")
async def test_a_stream_that_is_far_behind_reads_a_stretch_at_a_time(open_store, db, monkeypatch):
    monkeypatch.setattr(streaming, "_KEYS_AT_ONCE", 1_000)
    plans = await watch(db, monkeypatch)
    store = await open_store()
    await db.execute(FILL.replace("seq, 1, created_at", "seq, 3 + seq / 1000, 1.0"))
    await db.execute("ANALYZE")
    plans.seen.clear()
    position = BEGINNING
    for _ in range(50):
        found = await store.stream.changes_after(position, 100, 1 << 20)
        assert found.items
        position = found.position
    looks = [*plans.named("array_agg(seq)"), *plans.named("ORDER BY xid LIMIT")]
    assert len(looks) > 3
    for plan in looks:
        assert not plan.scanned, plan.query
        assert plan.buffers < 500, (plan.buffers, plan.query)
    beyond = plans.named("SELECT seq, version, lo FROM batch_event")
    assert beyond
    for plan in beyond:  # a few pages for each of a thousand keys, nothing of the rest
        assert plan.buffers < 5_000, (plan.buffers, plan.query)


@pytest.mark.req("jq:NFR-012")
@pytest.mark.parametrize(
    ("types", "meant"),
    [("a", None), ("a", frozenset("a")), ("abcd", None), ("abcd", frozenset("ab"))],
)
async def test_a_claim_does_not_read_what_was_claimed_before(
    open_store, postgres_dsn, db, monkeypatch, types, meant
):
    """Somebody's long transaction keeps the dead entries of every claim in the index."""
    plans = await watch(db, monkeypatch)
    store = await open_store()
    for _ in range(len(types) // len(meant or types)):
        await store.jobs.submit(new(*(spec(type=types[n % len(types)]) for n in range(6_000))))
    reader = await asyncpg.connect(postgres_dsn)
    long = reader.transaction(isolation="repeatable_read")
    await long.start()
    await reader.fetchval("SELECT count(*) FROM job_live")
    reads: list[int] = []
    for _ in range(20):
        plans.seen.clear()
        held = await store.jobs.claim([Claim(("q",), ["w"] * 250, types=meant)])
        assert len(held) == 250
        ends = [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in held]
        await store.jobs.apply(ends)
        reads.append(sum(plan.buffers for plan in plans.named(CANDIDATES)))
    # Entries of 5,000 claimed jobs would be a page each, again and again.
    assert max(reads[10:]) < 1.5 * max(reads[:2]), reads
    await long.rollback()
    await reader.close()


# Claimable jobs that nobody knows, in one of the ways to stand in front of others.
STRANGERS = """
WITH r AS (
    INSERT INTO job_record (id, queue, type, payload, priority, max_retries, created_at)
    SELECT gen_random_uuid(), 1, {type}, 'x', {priority}, 3, 1e9 + n
    FROM generate_series(1, {count}) n RETURNING seq, id, queue, type, priority, created_at
)
INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt,
                      retry_count, max_retries, updated_at)
SELECT seq, id, queue, kind_of(type), 9 - priority, {ready}, 1, 1, 1, 0, 0, 3, created_at FROM r
"""


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize(("priority", "ready"), [(0, 1), (0, 2), (9, 1), (9, 2)])
async def test_jobs_of_other_types_are_not_read(
    open_store, db, monkeypatch, priority, ready, analyzed
):
    """Twenty thousand of them in front cost as much as ten."""
    monkeypatch.setattr(heads, "_SLOW_LOOK", 60.0)  # hand-offs, however slow the machine is
    plans = await watch(db, monkeypatch)
    known = frozenset({"known", "also known"})
    read: list[list[int]] = []
    for count in (10, 20_000):
        strangers = {"type": "'stranger'", "priority": priority, "ready": ready, "count": count}
        await db.execute(STRANGERS.format(**strangers))
        if analyzed:
            await db.execute("ANALYZE")
        store = await open_store()  # it has to look first
        await store.jobs.submit(new(*(spec(b"%d" % n, type="known") for n in range(50))))
        plans.seen.clear()
        held = await store.jobs.claim([Claim(("q",), ["w"] * 20, types=known)])
        assert [int(one.payload) for one in held] == list(range(20))
        held += await store.jobs.claim([Claim(("*",), ["w"] * 99, types=known)])
        assert [int(one.payload) for one in held] == list(range(50))
        assert await store.jobs.claim([Claim(("q",), ["w"], types=known)]) == []
        submission = await store.jobs.submit(
            new(spec(type="known")), [Claim(("q",), ["w"], types=known)]
        )
        held += submission.assigned
        assert len(held) == 51
        await store.jobs.apply(
            [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in held]
        )
        (waits,) = await store.queues.waiting_types(10)
        assert (waits.type, waits.jobs) == ("stranger", 10)
        (hand_off,) = plans.named("WITH RECURSIVE home")
        looks = [*plans.named(CANDIDATES), *plans.named("WITH RECURSIVE head"), hand_off]
        assert len(looks) >= 4
        for plan in looks:
            assert plan.indexes & {"job_live_ready", "job_live_pkey"} == {"job_live_ready"}
        read.append([sum(map(_entries, looks)), max(plan.buffers for plan in looks)])
    (few, _), (many, pages) = read
    assert many <= few + 10, read
    assert pages < 100, read


def _entries(plan) -> int:
    """How many live rows were looked at."""
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in plan.nodes()
        if node.get("Relation Name") == "job_live"
    )


async def test_very_many_types_are_read_in_part(open_store, db, monkeypatch):
    plans = await watch(db, monkeypatch)
    await open_store()
    strangers = {"type": "'stranger ' || n", "priority": 5, "ready": 1, "count": 50_000}
    await db.execute(STRANGERS.format(**strangers))
    store = await open_store()
    await store.jobs.submit(new(*(spec(b"%d" % n, type="known") for n in range(3))))
    plans.seen.clear()
    for n in range(3):
        (one,) = await store.jobs.claim([Claim(("q",), ["w"], types=frozenset({"known"}))])
        assert int(one.payload) == n
        assert len(await store.jobs.claim([Claim(("q",), ["w"] * 300)])) == 300
    looks = [*plans.named(CANDIDATES), *plans.named("WITH RECURSIVE head")]
    assert len(looks) >= 7
    for plan in looks:  # some pages for each of the two thousand types that a look sees
        assert plan.buffers < 5 * heads.MOST_SEEN, (plan.buffers, plan.query)


# Queues that take turns, of which only one has dead letters; they are older than what is DONE.
OLD_LETTERS = """
INSERT INTO job_ended (seq, completed_at, queue, version, attempt, retry_count, state, reason,
                       cancel, error)
SELECT n, n, (SELECT id FROM queues WHERE name = CASE WHEN n % 2 = 0 THEN 'q' ELSE 'idle' END),
       4, 1, 0, CASE WHEN n % 2 = 0 AND n <= 80000 THEN 6 ELSE 4 END, 11, false,
       'boom' || repeat(' and more', 20)
FROM generate_series(1, 120000) n;
ANALYZE job_ended;
"""


@pytest.mark.parametrize("queue", ["q", "idle", None])
async def test_a_look_at_dead_letters_reads_no_other_jobs(open_store, db, monkeypatch, queue):
    """Where a third of all jobs are dead letters, walking down the numbers seems to be cheap."""
    plans = await watch(db, monkeypatch)
    store = await open_store()
    await store.queues.create(Queue(name="idle"))
    await db.execute(OLD_LETTERS)
    plans.seen.clear()
    looked = await store.reads.dead_letters(JobFilter(queue=queue, error="boom", limit=1_000))
    assert len(looked.found) == looked.looked_at == (0 if queue == "idle" else 1_000)
    (plan,) = plans.named("queues AS q CROSS JOIN")
    assert "job_ended_pkey" not in plan.indexes
    assert not plan.scanned
    assert plan.buffers < 500, (plan.buffers, plan.indexes)  # the table has thousands


async def test_reads_of_a_few_jobs_start_no_parallel_workers(open_store, db, monkeypatch):
    plans = await watch(db, monkeypatch)
    store = await open_store()
    await everything(store)
    await store.stream.events_after(BEGINNING, 100)
    await store.queues.stats()
    nodes = [node["Node Type"] for plan in plans.seen for node in plan.nodes()]
    assert "Limit" in nodes
    assert not {node for node in nodes if node.startswith("Gather")}


async def test_a_job_is_looked_up_by_one_plan_for_all(open_store):
    store = await open_store()
    (job_id,) = await accept(store)
    for _ in range(3):
        assert await store.reads.get(job_id)
        assert await store.reads.history(job_id)
    async with store._database.looking_up.connections.use() as connection:
        rows = await connection.raw.fetch(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
            " WHERE statement LIKE '%job_record%'"
        )
    assert sum(row[0] for row in rows) >= 9
    assert sum(row[1] for row in rows) == 0
