"""Types in the PostgreSQL store: numbers, servers side by side, hand-off, very many types."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import asyncpg
import pytest

from jobqueue.core.job import Transition
from jobqueue.core.queue import Queue
from jobqueue.core.store import Change, Claim
from jobqueue.stores.postgres import claiming, heads
from jobqueue.stores.postgres.heads import Heads, kind_of
from jobqueue.stores.postgres.migrate import bring_up, migrations
from jobqueue.stores.postgres.notices import Listener
from jobqueue.stores.postgres.store import PostgresStore
from tests.stores.driver import new, spec
from tests.stores.postgres.waiting import until

# As a server that knows V4 writes a job: it does not say the number of its type.
OLDER_SUBMIT = """
WITH r AS (
    INSERT INTO job_record (id, queue, type, payload, priority, max_retries, created_at)
    SELECT gen_random_uuid(), 1, type, payload, 0, 3, 1 FROM unnest($1::text[], $2::bytea[])
         WITH ORDINALITY AS t(type, payload, n) ORDER BY n
    RETURNING seq, id, queue, priority, max_retries, created_at
)
INSERT INTO job_live (seq, id, queue, prio, ready, state, reason, version, attempt, retry_count,
                      max_retries, updated_at)
SELECT seq, id, queue, 9 - priority, 1, 1, 1, 1, 0, 0, max_retries, created_at FROM r
"""


def claim(slots: int, types: str | None = None, worker: str = "w") -> list[Claim]:
    """Types of one letter each."""
    return [Claim(("q",), [worker] * slots, types=None if types is None else frozenset(types))]


async def payloads(store, slots: int, types: str | None = None) -> list[int]:
    return [int(one.payload) for one in await store.jobs.claim(claim(slots, types))]


async def submit(store, *types: str, claims: list[Claim] | None = None):
    """Jobs of these types; each has its place as its payload."""
    jobs = new(*(spec(b"%d" % n, type=type) for n, type in enumerate(types)))
    submission = await store.jobs.submit(jobs, claims or [])
    assert all(one.error is None for one in submission.results)
    return submission


async def test_a_types_number_is_the_same_in_the_database(db):
    types = ["", "a", "add", "mail.send", "Größe", "型", "🙂 x\t", "x" * 1_000]
    for type in types:
        assert await db.fetchval("SELECT kind_of($1)", type) == kind_of(type), type
    assert len({kind_of(f"{n}") for n in range(10_000)}) == 10_000


async def test_jobs_of_before_get_the_number_of_their_type(empty_postgres_dsn):
    connection = await asyncpg.connect(empty_postgres_dsn)
    before = next(n for n, one in enumerate(migrations()) if one.name == "types")
    await bring_up(connection, migrations()[:before])
    await connection.execute(
        "INSERT INTO queues (name, max_retries, retry_profile, created_at)"
        " VALUES ('q', 3, 'scheduler', now())"
    )
    await connection.execute(OLDER_SUBMIT, ["a", "b", "", "a"], [b"0", b"1", b"2", b"3"])
    await connection.close()
    store = PostgresStore(empty_postgres_dsn)
    await store.open()
    try:
        assert await payloads(store, 9, "a") == [0, 3]
        assert [int(one.payload) for one in await store.jobs.claim(claim(9))] == [1, 2]
    finally:
        await store.close()


async def test_a_server_of_an_older_version_submits_beside(store, db):
    await db.execute(OLDER_SUBMIT, ["a", "b", "a"], [b"0", b"1", b"2"])
    assert await payloads(store, 9, "a") == [0, 2]
    assert await payloads(store, 9, "b") == [1]


def test_the_word_of_an_older_version_is_heard():
    """It does not say which types there are: look."""
    heard: list[tuple[Change, object]] = []
    listener = Listener("", 1, lambda change, where: heard.append((change, where)))
    for said in ([[1, 9, 5]], [[1, 9, 77, 5]], None):
        listener._hear(None, 0, "", json.dumps([2, Change.WORK.value, said]))
    assert heard == [(Change.WORK, None), (Change.WORK, {(1, 9, 77): 5}), (Change.WORK, None)]


async def test_another_server_hears_which_types_there_are(open_store):
    one, two = await open_store(), await open_store()
    assert await payloads(two, 1, "a") == []
    two._heads._look_took = 3_600.0  # it does not look by itself
    found: list[int] = []
    await submit(one, "b", "a")

    async def found_it() -> bool:
        found.extend(await payloads(two, 1, "a"))
        return bool(found)

    await until(found_it)
    assert found == [1]
    assert await payloads(two, 5) == [0]


async def test_servers_with_different_types_drain_one_queue(open_store):
    """Each job once, by somebody who knows it; who knows all competes with the others."""
    stores = [await open_store() for _ in range(3)]
    known = ["ab", "bc", None]
    types = [("abc" + "d" * 3)[n % 6] for n in range(600)]
    got: list[tuple[str | None, str, int]] = []

    async def fill(store, part: int) -> None:
        for start in range(part * 300, part * 300 + 300, 30):
            jobs = [
                spec(b"%d" % n, type=types[n], priority=n % 3) for n in range(start, start + 30)
            ]
            await store.jobs.submit(new(*jobs))

    async def work(store, knows: str | None) -> None:
        for _ in range(400):
            held = await store.jobs.claim(claim(9, knows))
            got.extend((knows, one.type, int(one.payload)) for one in held)
            ends = [Transition.succeeded(one.seq, one.lease, None, 0.1) for one in held]
            if held:
                await store.jobs.apply(ends)
            elif len(got) == len(types):
                return
            await asyncio.sleep(0)

    await asyncio.gather(
        *(fill(stores[part], part) for part in range(2)),
        *(work(store, knows) for store, knows in zip(stores, known, strict=True)),
    )
    rest = await stores[2].jobs.claim(claim(len(types)))
    got.extend((None, one.type, int(one.payload)) for one in rest)
    assert sorted(n for _, _, n in got) == list(range(len(types)))
    assert all(knows is None or type in knows for knows, type, _ in got)


# -- hand-off ------------------------------------------------------------------------------


async def test_a_job_that_is_not_meant_stops_no_hand_off(store, db):
    await submit(store, "b", "c")
    submission = await submit(store, "a", claims=claim(1, "ad"))
    assert [one.type for one in submission.assigned] == ["a"]
    # In the write of its submit: it never waited.
    assert await db.fetchval("SELECT bool_and(ready = 0) FROM job_live WHERE state = 2")
    events = "SELECT count(DISTINCT xid) FROM job_event WHERE seq = $1"
    assert await db.fetchval(events, submission.assigned[0].seq) == 1


async def test_a_job_that_is_meant_goes_first(store):
    await submit(store, "b", "a", "b")
    submission = await submit(store, "a", "c", claims=claim(2, "ac"))
    assert [(one.type, int(one.payload)) for one in submission.assigned] == [("a", 1), ("a", 0)]
    assert await payloads(store, 9, "abc") == [0, 2, 1]


async def test_who_takes_all_types_takes_what_waits_first(store):
    await submit(store, "b")
    submission = await submit(store, "a", claims=claim(1))
    assert [one.type for one in submission.assigned] == ["b"]


async def test_a_job_that_is_meant_is_seen_behind_many_that_are_not(store):
    strangers = [f"stranger {n}" for n in range(30)]
    await submit(store, *strangers, "a")
    submission = await submit(store, "a", claims=claim(1, "a"))
    assert [int(one.payload) for one in submission.assigned] == [30]
    assert await payloads(store, 1, "a") == [0]


async def test_a_paused_queue_hands_nothing_off(store):
    await store.queues.pause("q", True)
    assert (await submit(store, "a", claims=claim(1, "a"))).assigned == []


# -- very many types -----------------------------------------------------------------------


@pytest.fixture
def few_kinds(monkeypatch) -> None:
    monkeypatch.setattr(heads, "_MOST_READ", 5)
    for module in (heads, claiming):
        monkeypatch.setattr(module, "MOST_SEEN", 5)


@pytest.mark.usefixtures("few_kinds")
async def test_of_very_many_types_each_is_found(open_store):
    store, other = await open_store(), await open_store()
    types = [f"type {n}" for n in range(60)]
    await submit(store, *types, *types)
    for n in (0, 7, 59):  # by name, each at once and in order
        wanted = [Claim(("q",), ["w"] * 2, types=frozenset({types[n], "unknown"}))]
        assert [int(one.payload) for one in await other.jobs.claim(wanted)] == [n, 60 + n]
        assert await other.jobs.claim(wanted) == []
    found: Counter[str] = Counter()

    async def all_found() -> bool:
        found.update(one.type for one in await other.jobs.claim(claim(4)))
        return found.total() == 114

    await until(all_found)
    assert set(found.values()) == {2}


@pytest.mark.usefixtures("few_kinds")
async def test_the_most_urgent_of_very_many_types_come_first(open_store):
    store = await open_store()
    await submit(store, *(f"type {n}" for n in range(60)))
    await store.jobs.submit(new(*(spec(type=f"urgent {n}", priority=9) for n in range(20))))
    other = await open_store()
    got: list[int] = []

    async def all_got() -> bool:
        got.extend(one.priority for one in await other.jobs.claim(claim(7)))
        return len(got) >= 80

    await until(all_got)
    assert got == [9] * 20 + [0] * 60


async def test_who_takes_all_of_many_types_takes_the_oldest_first(store, monkeypatch):
    monkeypatch.setattr(heads, "_MOST_READ", 5)
    types = [f"type {n}" for n in range(20)]
    await submit(store, *types, *types)
    for first, slots in ((0, 3), (3, 27), (30, 10)):
        store._heads.forget()
        assert await payloads(store, slots) == [n % 40 for n in range(first, first + slots)]


@pytest.fixture
async def crowded(store, few_kinds, monkeypatch) -> str:
    """Jobs of twenty types, and one of these that a look passes over."""
    monkeypatch.setattr(random, "randrange", lambda start, end: end - 1)
    types = [f"type {n}" for n in range(20)]
    await submit(store, *types, *types)
    return max(types, key=kind_of)


async def look_only_now(store: PostgresStore) -> None:
    store._heads.forget()
    assert await store.jobs.claim([Claim(("q",), ["w"], types=frozenset({"none"}))]) == []
    store._heads._look_took = 3_600.0


async def test_who_hears_of_a_new_job_knows_not_yet_which_waited_before(store, crowded):
    await look_only_now(store)
    await submit(store, crowded)
    wanted = [Claim(("q",), ["w"] * 9, types=frozenset({crowded}))]
    seqs = [one.seq for one in await store.jobs.claim(wanted)]
    assert len(seqs) == 3
    assert seqs == sorted(seqs)


async def test_who_sees_a_job_that_came_back_knows_not_yet_of_fresh_ones(store, crowded):
    known = frozenset({crowded})
    (held,) = await store.jobs.claim([Claim(("q",), ["w"], types=known)])
    await store.jobs.apply([Transition.handed_back(held.seq, held.lease)])
    await look_only_now(store)
    seqs = [one.seq for one in await store.jobs.claim([Claim(("q",), ["w"] * 3, types=known)])]
    assert len(seqs) == 2
    assert seqs[0] == held.seq


@pytest.mark.usefixtures("crowded")
async def test_types_that_nothing_waits_of_do_not_keep_a_claim_from_the_others(store):
    await look_only_now(store)
    known = frozenset(f"type {n}" for n in range(500))
    for slots in (3, 17, 20):
        wanted = [Claim(("q",), ["w"] * slots, types=known)]
        seqs = [one.seq for one in await store.jobs.claim(wanted)]
        assert len(seqs) == slots
        assert seqs == sorted(seqs)


def test_what_is_said_of_very_many_types_is_bounded(monkeypatch):
    monkeypatch.setattr(heads, "_MOST_HEADS", 100)
    floors = Heads()
    floors.looked([], 0.001)
    for n in range(150):
        floors.lower((1, 9, n), n)
    assert len(floors._floors) == 100
    assert floors.wants_look(known=True)


async def test_waiting_types_of_one_queue_and_of_all(open_store):
    store = await open_store()
    for name in ("p", "r"):
        await store.queues.create(Queue(name=name))
    await store.jobs.submit(new(*(spec(type=t, queue=q) for q in "pqr" for t in ("b", "a", "b"))))
    every = await store.queues.waiting_types(10)
    assert [(one.queue, one.type, one.jobs) for one in every] == [
        (queue, type, jobs) for queue in "pqr" for type, jobs in (("a", 1), ("b", 2))
    ]
    for queue in "pqr":
        assert await store.queues.waiting_types(10, queue) == [o for o in every if o.queue == queue]
