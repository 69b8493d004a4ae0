"""Plain jobs in ranges and held rows: how they are claimed, reported, and leave."""

from __future__ import annotations

import asyncio
import functools
import json
import operator
import random
from typing import Any

import asyncpg
import pytest

from jobqueue.core.job import Refusal, Transition
from jobqueue.core.lifecycle import Move, State
from jobqueue.core.progress import Progress
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Change, Claim
from jobqueue.stores.postgres import connections, layout
from jobqueue.stores.postgres.applying import Applying
from jobqueue.stores.postgres.leases import base_of, bits, new_base, new_row_lease, numbers_in
from jobqueue.stores.postgres.statements import BATCH, SQL
from jobqueue.stores.postgres.streaming import Stream
from tests import patience
from tests.stores.driver import new, spec, worker
from tests.stores.postgres.waiting import until

pytestmark = pytest.mark.integration


async def submit(store, count: int, **fields) -> list[str]:
    jobs = new(*(spec(b"%d" % n, **fields) for n in range(count)))
    assert all(one.error is None for one in (await store.jobs.submit(jobs)).results)
    return [job.id for job in jobs]


async def claim(store, count: int, *workers: str):
    names = workers or ("w",)
    return await store.jobs.claim([Claim(("q",), [names[n % len(names)] for n in range(count)])])


async def finish(store, held) -> list:
    moves = [Transition.succeeded(one.seq, one.lease, b"r", 0.5) for one in held]
    return (await store.jobs.apply(moves)).outcomes


async def ranges(db) -> list[tuple[int, int]]:
    return [tuple(row) for row in await db.fetch("SELECT nxt, hi FROM job_ready ORDER BY hi")]


async def held_rows(db) -> list[set[int]]:
    rows = await db.fetch("SELECT array_agg(seq) FROM held_job GROUP BY lease - seq")
    return [set(row[0]) for row in rows]


async def waiting(db) -> bool:
    return bool(await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def test_a_batch_goes_from_range_to_held_row_to_its_end(store, db):
    await submit(store, 1_500)
    assert await ranges(db) == [(1, 1_023), (1_024, 1_500)]
    held = await claim(store, 1_200)
    assert [one.seq for one in held] == list(range(1, 1_201))
    assert await ranges(db) == [(1_201, 1_500)]
    assert sorted(map(len, await held_rows(db))) == [177, 1_023]
    assert await db.fetchval("SELECT count(*) FROM job_live") == 0
    assert all(outcome.applied for outcome in await finish(store, held[:900]))
    assert sorted(map(len, await held_rows(db))) == [123, 177]
    assert all(outcome.applied for outcome in await finish(store, held[900:]))
    assert await held_rows(db) == []
    assert await db.fetchval("SELECT count(*) FROM batch_end") == 1_200
    assert await db.fetchval("SELECT count(*) FROM job_ended") == 0
    (stats,) = await store.queues.stats("q")
    assert (stats.depth[State.DONE], stats.depth[State.PENDING]) == (1_200, 300)
    assert stats.run_seconds == pytest.approx(600)


class Between:
    """A connection on which something happens before a statement."""

    def __init__(self, db, statement: str, happens) -> None:
        self._db, self._statement = db, statement
        self._happens = happens

    def __getattr__(self, name: str):
        return getattr(self._db, name)

    async def fetch(self, query: str, *asked):
        if query == self._statement and self._happens is not None:
            happens, self._happens = self._happens, None
            await happens()
        return await self._db.fetch(query, *asked)


def interrupted(monkeypatch, statement: str, happens) -> None:
    """Let something happen before the first such statement of a report."""
    run = Applying.run
    tries: list[Any] = []

    async def between(self: Any, db: Any) -> None:
        tries.append(db)
        asked: Any = Between(db, SQL[statement], happens) if len(tries) == 1 else db
        await run(self, asked)

    monkeypatch.setattr(Applying, "run", between)


async def test_a_report_whose_jobs_are_forgotten_meanwhile_has_its_outcomes(store, monkeypatch):
    await submit(store, 20)
    held = await claim(store, 20)

    resolve = store._queue_cache.resolve

    async def forget(*asked):
        for one in held:  # as another report of the same held row does while this one waits
            store.jobs._holding.left(base_of(one.seq, one.lease), [one.seq])
        return await resolve(*asked)

    monkeypatch.setattr(store._queue_cache, "resolve", forget)
    outcomes = await finish(store, held)
    assert [one.job_id for one in outcomes] == [one.id for one in held]


@pytest.mark.parametrize("count", [20, 5])  # as a held row, and as rows
async def test_a_report_that_fails_after_its_write_is_not_refused(store, monkeypatch, count):
    await submit(store, count)
    held = await claim(store, count)
    resolve = store._queue_cache.resolve
    tries: list[Any] = []

    async def fail_once(*asked):
        tries.append(asked)
        if len(tries) == 1:
            raise asyncpg.QueryCanceledError("canceling statement due to lock timeout")
        return await resolve(*asked)

    monkeypatch.setattr(store._queue_cache, "resolve", fail_once)
    outcomes = await finish(store, held)
    assert {(one.refusal, one.state) for one in outcomes} == {(None, State.DONE)}


async def test_a_job_that_is_deleted_during_a_report_costs_the_others_nothing(
    store, open_store, monkeypatch
):
    ids = await submit(store, 20)
    held = await claim(store, 20)
    other = await open_store()  # it did not make the claim, so it reads the ids

    async def delete():
        await finish(store, held[:1])
        assert await store.upkeep.delete_job(ids[0]) is State.DONE

    interrupted(monkeypatch, "ids", delete)
    outcomes = await finish(other, held)
    assert outcomes[0].refusal is Refusal.NO_SUCH_JOB
    assert {one.refusal for one in outcomes[1:]} == {None}


async def test_a_job_that_ends_while_it_is_looked_for_is_deleted(store, open_store, monkeypatch):
    ids = await submit(store, 20)
    held = await claim(store, 20)
    other = await open_store()
    ask = connections._Asked.fetchval
    ended: list[Any] = []

    async def fetchval(self: Any, query: str, *asked: Any, **options: Any) -> Any:
        if "job_live_of" in query and not ended:
            ended.extend(await finish(other, held))
        return await ask(self, query, *asked, **options)

    monkeypatch.setattr(connections._Asked, "fetchval", fetchval)
    assert await store.upkeep.delete_job(ids[3]) is State.DONE
    assert await store.reads.get(ids[3]) is None


async def test_a_look_at_one_job_reads_no_dead_ranges_of_other_windows(store, db, postgres_dsn):
    await submit(store, 20)
    held = await claim(store, 20)
    pinning = await asyncpg.connect(postgres_dsn)
    try:
        await pinning.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM queues")
        await db.execute(
            "INSERT INTO job_ready (hi, nxt, kind, queue, prio)"
            " SELECT n << 10, n << 10, 1, 1, 9 FROM generate_series(10, 20000) n"
        )
        await db.execute("DELETE FROM job_ready")  # the index keeps them for the old snapshot
        plan = await db.fetchval(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM job_plain_of($1::bigint)",
            held[0].seq,
        )
    finally:
        await pinning.close()
    assert json.loads(plan)[0]["Plan"]["Shared Hit Blocks"] < 50
    assert (await store.reads.get(held[0].id)).state is State.ASSIGNED


async def test_few_jobs_are_rows(store, db):
    await submit(store, 15)
    assert await ranges(db) == []
    await submit(store, 40)
    held = await claim(store, 15 + 20, "w", "v", "v", "v")
    assert await ranges(db) == [(36, 55)]
    # Of the twenty from the range "v" has fifteen, which are too few.
    assert await held_rows(db) == []
    assert {one.lease >> 62 for one in held} == {0}
    held = await claim(store, 20)
    assert {one.lease >> 62 for one in held} == {1}
    assert await db.fetchval("SELECT count(*) FROM job_live") == 35


async def test_a_range_has_one_queue_priority_type_and_expiry(store, db):
    await store.queues.create(Queue(name="other", ttl=50.0))
    kinds: list[dict[str, Any]] = [
        {}, {"priority": 3}, {"type": "t"}, {"ttl": 9.0}, {"queue": "other"}, {"delay": 5.0},
        {"queue": "other", "ttl": 60.0},
    ]  # fmt: skip
    jobs = new(*(spec(b"%d" % n, **kind) for kind in kinds for n in range(20)), spec(b"alone"))
    await store.jobs.submit(jobs)
    found = await db.fetch(
        "SELECT k.hi - k.nxt + 1, 9 - k.prio, q.name, count(*), min(r.type), max(r.type),"
        " count(DISTINCT k.expires_at), min(r.priority), max(r.priority), count(DISTINCT r.queue),"
        " bool_and(k.expires_at IS NOT DISTINCT FROM r.created_at + r.ttl),"
        " bool_and(r.run_at IS NULL)"
        " FROM job_ready AS k JOIN queues AS q ON q.id = k.queue"
        " JOIN job_record AS r ON r.seq BETWEEN k.nxt AND k.hi GROUP BY k.hi, q.name ORDER BY k.hi"
    )
    assert [row[0] for row in found] == [20] * 6
    for row in found:
        assert row[3] == row[0]
        assert row[4] == row[5]
        assert row[6] <= 1
        assert row[9] == 1
        assert (row[7], row[8]) == (row[1], row[1])
        assert row[10]
        assert row[11]
    assert await db.fetchval("SELECT count(*) FROM job_live") == 21


async def test_types_that_take_turns_stay_rows_and_keep_their_order(store, db):
    jobs = new(*(spec(b"%d" % n, type="ab"[n % 2]) for n in range(60)))
    await store.jobs.submit(jobs)
    assert await ranges(db) == []
    await submit(store, 40, type="a")
    held = await claim(store, 100)
    assert [one.id for one in held[:60]] == [job.id for job in jobs]


async def test_numbers_of_another_connection_make_gaps(open_store, db):
    one, two = await open_store(), await open_store()
    batches = await asyncio.gather(*(submit(s, 300) for s in (one, two) for _ in range(4)))
    covered = [n for lo, hi in await ranges(db) for n in range(lo, hi + 1)]
    assert len(covered) == len(set(covered)) == 2_400
    got = []
    while some := await claim(one, 500):
        got += some
    assert sorted(job.id for job in got) == sorted(functools.reduce(operator.iadd, batches, []))
    orders = {job_id: n for n, job_id in enumerate(job.id for job in got)}
    for batch in batches:  # within a batch the order is that of the submit
        places = [orders[job_id] for job_id in batch]
        assert places == sorted(places)


# -- leases ----------------------------------------------------------------------------------


def test_bases_and_leases_of_rows_are_told_apart():
    bases = {new_base() for _ in range(100_000)}
    assert len(bases) == 100_000
    assert all(2**62 <= base < 2**62 + 2**61 for base in bases)
    assert all(0 < new_row_lease() < 2**62 for _ in range(10_000))
    assert base_of(5, new_row_lease()) is None
    assert base_of(5, None) is None


def test_bits_say_their_numbers():
    draw = random.Random(3)
    for _ in range(50):
        numbers = draw.sample(range(5 * 1_024, 6 * 1_024), draw.randint(1, 1_024))
        assert numbers_in(bits(numbers), range(5 * 1_024, 6 * 1_024)) == set(numbers)


async def test_a_lease_helps_with_no_other_job(store, db):
    """Neither another worker's in the same claim, nor one in the same place of another window."""
    await store.workers.register(worker("v"))
    await submit(store, 2_048 + 100)
    held = await claim(store, 2_048 + 100, "w", "v")
    mine = {one.seq: one for one in held if one.worker_id == "w"}
    theirs = [one for one in held if one.worker_id == "v"]
    wrong = []
    for one in theirs[:60]:
        for known in (mine[one.seq + 1], mine[1], mine[1_501]):
            base = known.lease - known.seq
            wrong += [base + one.seq, known.lease, known.lease + 1, known.lease - 1]
        for lease in wrong:
            report = Transition.succeeded(one.seq, lease, b"stolen", 0.1)
            start, fail = Transition.started(one.seq, lease), Transition.failed(one.seq, lease, "x")
            for outcome in (await store.jobs.apply([report, start, fail])).outcomes:
                assert outcome.refusal is Refusal.STALE_LEASE
        wrong.clear()
    for one in list(mine.values())[:10]:  # in the next window, by the same base: no such job there
        for away in (1_024, -1_024):
            (outcome,) = (
                await store.jobs.apply(
                    [Transition.succeeded(one.seq + away, one.lease + away, b"stolen", 0.1)]
                )
            ).outcomes
            assert not outcome.applied
    # A right lease, and the wrong worker.
    moves = [Transition.succeeded(one.seq, one.lease, b"r", 0.1) for one in mine.values()]
    for move in moves:
        move.worker_id = "v"
    outcomes = (await store.jobs.apply(moves[:40])).outcomes
    assert {outcome.refusal for outcome in outcomes} == {Refusal.STALE_LEASE}
    assert all(outcome.applied for outcome in await finish(store, held))
    assert await db.fetchval("SELECT count(*) FROM batch_end WHERE result <> 'r'") == 0


async def test_parts_of_one_row_for_two_workers_in_one_report(store, db):
    await submit(store, 40)
    held = await claim(store, 40)
    moves = [Transition.succeeded(one.seq, one.lease, b"r", 0.1) for one in held]
    for n, move in enumerate(moves):
        move.worker_id = ("w", "v", None)[n % 3]
    outcomes = (await store.jobs.apply(moves)).outcomes
    assert [outcome.applied for outcome in outcomes] == [n % 3 != 1 for n in range(40)]
    assert all(outcome.applied for outcome in await finish(store, held[1::3]))


# -- reports ---------------------------------------------------------------------------------


async def test_of_overlapping_reports_each_job_is_accepted_once(open_store, db):
    stores = [await open_store() for _ in range(3)]
    await submit(stores[0], 900)
    held = await claim(stores[0], 900)
    draw = random.Random(5)
    reports = [draw.sample(held, 200) for _ in range(24)]
    answers = await asyncio.gather(
        *(finish(stores[n % 3], report) for n, report in enumerate(reports))
    )
    applied: list[int] = []
    for report, outcomes in zip(reports, answers, strict=True):
        applied += [one.seq for one, got in zip(report, outcomes, strict=True) if got.applied]
        assert {got.state for got in outcomes} == {State.DONE}
    assert sorted(applied) == sorted({one.seq for report in reports for one in report})
    ends = [row[0] for row in await db.fetch("SELECT seq FROM batch_end")]
    assert sorted(ends) == sorted(applied)


async def test_a_part_whose_jobs_left_goes_on_without_them(store, db):
    ids = await submit(store, 100)
    held = await claim(store, 100)
    await store.jobs.apply([Transition.started(one.seq, one.lease) for one in held[10:20]])
    await store.jobs.apply([Transition(one.seq, Move.CANCEL) for one in held[20:23]])
    await store.jobs.apply([Transition.failed(held[23].seq, held[23].lease, "boom")])
    assert [len(row) for row in await held_rows(db)] == [86]
    outcomes = await finish(store, held)
    assert [outcome.applied for outcome in outcomes] == [not 20 <= n <= 23 for n in range(100)]
    assert [outcome.job_id for outcome in outcomes] == ids
    assert await db.fetchval("SELECT count(*) FROM batch_end") == 96
    assert await db.fetchval("SELECT count(*) FROM job_live") == 1


async def test_another_server_reports_a_claim(open_store):
    one, two = await open_store(), await open_store()
    ids = await submit(one, 50)
    held = await claim(one, 50)
    outcomes = await finish(two, held)
    assert [outcome.job_id for outcome in outcomes] == ids
    assert {(got.queue, got.worker_id, got.ran_for) for got in outcomes} == {("q", "w", 0.5)}
    again = await finish(one, held)
    assert {outcome.refusal for outcome in again} == {Refusal.STALE_LEASE}


async def test_progress_of_a_job_in_a_held_row_is_kept_until_its_start(store):
    (first, *_) = await submit(store, 30)
    held = await claim(store, 30)
    store.workers.pulse("w", 1, [], [], {held[0].lease: Progress.of(0.25, "")})
    store.workers._forget_progress_at = 0.0
    store.workers.pulse("w", 1, [], [], {held[1].lease: Progress.of(0.5, "")})
    await store.jobs.apply([Transition.started(held[0].seq, held[0].lease)])
    assert (await store.reads.get(first)).progress.value == 0.25


# -- leaving ---------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True])
async def test_a_cut_leaves_the_rest_of_the_ranges(store, db, whole):
    """Random numbers leave random ranges; compared with sets."""
    draw = random.Random(11)
    await submit(store, 2_500)
    await claim(store, 30)
    left = set(range(31, 2_501))
    gone: set[int] = set()
    for _ in range(25):
        wanted = sorted(draw.sample(range(1, 2_600), draw.choice([1, 2, 40])))
        wanted += [n + 1 for n in wanted if n + 1 not in wanted]
        before = await ranges(db)
        statement = (SQL if whole else BATCH)["leave_ready"]
        rows = await db.fetch(statement, sorted(wanted))
        expected = left & set(wanted)
        if whole:
            hit = [(lo, hi) for lo, hi in before if expected & set(range(lo, hi + 1))]
            expected = {n for lo, hi in hit for n in range(lo, hi + 1)}
        assert sorted(row[0] for row in rows) == sorted(expected)
        left -= expected
        gone |= expected
        pieces = await ranges(db)
        covered = [n for lo, hi in pieces for n in range(lo, hi + 1)]
        assert covered == sorted(left)
        assert all(lo >> 10 == hi >> 10 for lo, hi in pieces)
        live = await db.fetch("SELECT seq FROM job_live")
        assert {row[0] for row in live} == gone
    if not whole:
        held = []
        while some := await claim(store, 700):
            held += some
        # What came back has its place among the others.
        assert [one.seq for one in held[:600]] == list(range(31, 631))
        assert {one.seq for one in held} == left | gone


async def test_a_refused_move_leaves_a_job_where_it_is_or_claimable(store, db):
    await submit(store, 40)
    seqs = list(range(1, 41))
    moves = [Transition(seq, Move.RETRY_BY_HAND) for seq in seqs[:5]]
    moves += [Transition.succeeded(seq, 7, None) for seq in seqs[5:10]]
    moves += [Transition(seq, Move.EXPIRE, version=9) for seq in seqs[10:15]]
    outcomes = (await store.jobs.apply(moves)).outcomes
    assert [got.refusal for got in outcomes] == (
        [Refusal.WRONG_STATE] * 5 + [Refusal.STALE_LEASE] * 5 + [Refusal.STALE_VERSION] * 5
    )
    assert await ranges(db) == [(1, 40)]
    held = await claim(store, 30)
    moves = [Transition(held[0].seq, Move.CANCEL, worker_id="v")]
    moves += [Transition.failed(one.seq, one.lease + 1, "boom") for one in held[1:6]]
    moves += [Transition(one.seq, Move.RETRY_WHEN_DUE) for one in held[6:9]]
    outcomes = (await store.jobs.apply(moves)).outcomes
    assert not any(got.applied for got in outcomes)
    assert {got.state for got in outcomes} == {State.ASSIGNED}
    assert all(outcome.applied for outcome in await finish(store, held))


async def test_a_cancel_and_a_claim_meet(open_store, postgres_dsn, db):
    """Whichever locks the range first, the job is in one place, and the other goes on."""
    store = await open_store()
    await submit(store, 100)
    other = await asyncpg.connect(postgres_dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM job_ready FOR UPDATE")
    cancel = asyncio.create_task(store.jobs.apply([Transition(3, Move.CANCEL)]))
    await until(lambda: waiting(db))
    assert await claim(store, 20) == []  # it does not wait
    await other.execute("UPDATE job_ready SET nxt = 21")
    await other.execute(
        "INSERT INTO job_held SELECT (2^62)::bigint, 0, 1e9, 1e10, queue, 1, bits FROM job_ready,"
        " (SELECT bit_or(set_bit(0::bit(1024), n, 1)) AS bits FROM generate_series(1, 20) n) AS b"
    )
    await transaction.commit()
    await other.close()
    (outcome,) = (await cancel).outcomes
    assert (outcome.applied, outcome.state) == (True, State.DEAD_LETTERED)
    assert sorted(map(len, await held_rows(db))) == [19]
    held = await claim(store, 20)
    assert [one.seq for one in held] == list(range(21, 41))


async def test_when_a_job_has_left_its_range_the_others_are_looked_for(open_store):
    """Claims skip a range while a job leaves it."""
    store, other = await open_store(), await open_store()
    await submit(store, 40)
    heard: dict[str, Change] = {"here": Change(0), "there": Change(0)}
    told = asyncio.Event()

    def hear(where: str, change: Change) -> None:
        heard[where] |= change
        if all(Change.WORK in change for change in heard.values()):
            told.set()

    store.on_change(functools.partial(hear, "here"))
    other.on_change(functools.partial(hear, "there"))
    await store.jobs.apply([Transition(3, Move.CANCEL)])
    async with patience.timeout(20.0):
        await told.wait()


async def test_claimers_of_one_front_share_nothing_and_keep_the_order(open_store):
    stores = [await open_store() for _ in range(4)]
    await submit(stores[0], 6_000)

    async def drain(store) -> list[list[int]]:
        found, idle = [], 0
        while idle < 5:
            got = [one.seq for one in await claim(store, 100)]
            idle = 0 if got else idle + 1
            if got:
                found.append(got)
            await asyncio.sleep(0.01 * idle)
        return found

    found = await asyncio.gather(*map(drain, stores))
    every = [seq for mine in found for claimed in mine for seq in claimed]
    assert sorted(every) == list(range(1, 6_001))
    for mine in found:
        for claimed in mine:
            assert claimed == sorted(claimed)


async def test_with_one_claimer_the_order_is_exact(store):
    await submit(store, 300)
    held = await claim(store, 40)
    await store.jobs.apply([Transition(one.seq, Move.HAND_BACK, one.lease) for one in held[::2]])
    await store.jobs.apply([Transition(50, Move.CANCEL)])
    await submit(store, 5, priority=1)
    got = await claim(store, 200)
    expected = list(range(301, 306)) + [one.seq for one in held[::2]]
    expected += [seq for seq in range(41, 300) if seq != 50]
    assert [one.seq for one in got] == expected[:200]


async def test_a_paused_or_expired_range_is_not_claimed(store, db):
    await submit(store, 40, ttl=600.0)
    await db.execute("UPDATE queues SET paused = true")
    assert await claim(store, 10) == []
    await db.execute("UPDATE queues SET paused = false")
    await db.execute("UPDATE job_ready SET expires_at = 1")
    store._queue_cache.spoil()
    assert await claim(store, 10) == []
    due = await store.upkeep.due(25)
    assert len(due.transitions) == 25
    outcomes = (await store.jobs.apply(due.transitions)).outcomes
    assert {(got.applied, got.state) for got in outcomes} == {(True, State.DEAD_LETTERED)}
    assert sum(hi - lo + 1 for lo, hi in await ranges(db)) == 15


async def test_a_hand_off_gives_way_to_a_range(store):
    await submit(store, 20, type="a")
    for types, handed in ((None, 0), (frozenset({"a"}), 0), (frozenset({"b"}), 1)):
        slots = [Claim(("q",), ["w"], types=types)]
        done = await store.jobs.submit(new(spec(b"new", type="b", priority=0)), slots)
        got = [one.payload for one in done.assigned]
        assert len(got) == 1
        assert (got == [b"new"]) == bool(handed)


async def test_a_cancel_with_an_older_number_than_the_claim_comes_after_it(
    open_store, postgres_dsn, db, monkeypatch
):
    """The stream is cut between the two transactions: the claim is read with the cancel."""
    store = await open_store()
    await submit(store, 40)
    other = await asyncpg.connect(postgres_dsn)
    transaction = other.transaction()
    await transaction.start()
    early = int(await other.fetchval("SELECT pg_current_xact_id()::text"))
    (held, *_) = await claim(store, 20)
    late = await db.fetchval("SELECT max(xid) FROM job_steps WHERE step = 2")
    assert late > early
    await other.execute(SQL["leave_held"], [held.seq], [None])
    await other.execute("DELETE FROM job_live")
    await other.execute(
        "INSERT INTO job_event (seq, xid, at, version, attempt, from_state, to_state, reason)"
        " VALUES ($1, $2, 1e9, 3, 1, 2, 6, 14)", held.seq, early,
    )  # fmt: skip
    await transaction.commit()
    await other.close()
    monkeypatch.setattr("jobqueue.stores.postgres.streaming._KEYS_AT_ONCE", 41)
    stream: Stream = store.stream
    position, seen = BEGINNING, []
    while (page := await stream.changes_after(position, 1_000, 1 << 20)).items:
        seen += [item.event_id for item in page.items]
        position = page.position
    versions = [int(one.rpartition(":")[2]) for one in seen if held.id in one]
    assert [n for at, n in enumerate(versions) if n not in versions[:at]] == [1, 2, 3]


# -- layouts ---------------------------------------------------------------------------------


async def test_what_was_claimed_from_ranges_goes_on_at_a_lower_layout(open_store, db):
    store = await open_store()
    ids = await submit(store, 300)
    held = await claim(store, 100)
    await layout.change(db, 2)
    assert await ranges(db) == []
    assert await held_rows(db) == []
    assert await db.fetchval("SELECT count(*) FROM job_live") == 300
    assert all(outcome.applied for outcome in await finish(store, held))
    again = await claim(store, 300)
    assert [one.id for one in again] == ids[100:]
    assert all(outcome.applied for outcome in await finish(store, again))


@pytest.mark.parametrize("table", ["job_ready", "job_held"])
async def test_nobody_writes_ranges_below_their_layout(store, db, table):
    await layout.change(db, 2)
    with pytest.raises(asyncpg.SerializationError):
        await db.execute(f"INSERT INTO {table} SELECT * FROM {table}")
