"""``jq.submit`` writes the same job as the store, in a user's own transaction."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobqueue.core.decide import event_of
from jobqueue.core.errors import (
    Conflict,
    InvalidArgument,
    KeyConflict,
    KeyHeld,
    NotFound,
    QueueFull,
)
from jobqueue.core.job import COMMON, Job, JobSpec, SubmitStatus
from jobqueue.core.queue import Queue, QueueSettings
from jobqueue.core.store import Claim, JobFilter, Rules
from jobqueue.engine import admission
from jobqueue.stores.postgres import layout
from jobqueue.stores.postgres.migrate import migrations
from jobqueue.stores.postgres.statements import LAYOUT
from jobqueue.stores.postgres.store import PostgresStore
from tests import patience
from tests.stores.driver import new, spec
from tests.stores.postgres.waiting import until
from tests.stores.twin import Twin

# Only a server knows its callers. A transaction of its own cannot have unique jobs.
NOT_SENT = {"key_owner", "unique"}
CALL = "SELECT status, job_id::text, field, message FROM jq.submit_jobs($1::text::json) ORDER BY n"


def document(asked: JobSpec) -> dict[str, Any]:
    """Return a spec in the form that the function takes."""
    names = [one.name for one in fields(JobSpec) if one.name not in NOT_SENT]
    said = {name: getattr(asked, name) for name in names}
    said["payload"] = base64.b64encode(asked.payload).decode()
    said["labels"] = dict(asked.labels) or None
    return {name: value for name, value in said.items() if value is not None}


async def submit(db: Any, *specs: JobSpec) -> list[tuple[str, str | None, str | None, str | None]]:
    rows = await db.fetch(CALL, json.dumps([document(one) for one in specs]))
    return [tuple(row) for row in rows]


async def accepted(db: Any, asked: JobSpec) -> str:
    ((status, job_id, _, message),) = await submit(db, asked)
    assert (status, message) == ("accepted", None)
    assert job_id is not None
    return job_id


@pytest_asyncio.fixture
async def other(postgres_dsn: str) -> AsyncIterator[Any]:
    """A second connection of the user's."""
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


async def job_of(store: PostgresStore, job_id: str) -> Job:
    job = await store.reads.get(job_id)
    assert job is not None
    return job


# -- the same as the store ---------------------------------------------------------------------

SAID: list[dict[str, Any]] = [
    {},
    {"type": "mail.send", "priority": 9, "labels": {"tenant": "a", "größe": "ü ✓", "empty": ""}},
    {"payload": bytes(range(256)), "type": "größe ✓" * 25},
    {"max_retries": 0, "ttl": 90.5, "timeout": 0.25},
    {"delay": 30.0, "ttl": 31.0},
    {"delay": 0.0},
    {"run_at": 4_000_000_000.125, "priority": 3},
    {"run_at": 1.0},
    {"key": "schlüssel ✓"},
    {"key": "\x1fodd\x1fkey"},
    {"key": "k" * 255, "queue": "full-of-settings"},
    {"queue": "full-of-settings"},
    {"queue": "full-of-settings", "max_retries": 1, "ttl": 5.0, "timeout": 6.0, "delay": 4.0},
    {"queue": "bounded", "priority": 1},
    {"concurrency_key": 'tenant:"42"', "type": "t", "labels": {"a": "b"}},
    {"concurrency_key": "k" * 200, "key": "concurrent", "delay": 30.0},
]
SETTINGS = {
    "q": QueueSettings(),
    "full-of-settings": QueueSettings(max_retries=7, ttl=120.0, timeout=9.0),
    "bounded": QueueSettings(capacity=1_000),
}
TABLES = ("job_record", "job_live", "job_event", "job_key", "queue_tally")
UNIQUE = {"seq", "id", "xid", "sha256", "fingerprint", "layout"}


async def rows_of(db: Any, seq: int) -> dict[str, list[dict[str, Any]]]:
    """Every row about a job, with times as seconds since its submit."""
    job_id, at = await db.fetchrow("SELECT id, created_at FROM job_record WHERE seq = $1", seq)
    found: dict[str, list[dict[str, Any]]] = {}
    for table in TABLES[:4]:
        by, value = ("id", job_id) if table == "job_key" else ("seq", seq)
        rows = await db.fetch(f"SELECT * FROM {table} WHERE {by} = $1", value)
        found[table] = [
            {
                # The store reads the clock for a key and for its job in two statements.
                name: pytest.approx(value - at, abs=30.0 if table == "job_key" else 1e-3)
                if is_time(name, value)
                else value
                for name, value in row.items()
                if name not in UNIQUE
            }
            for row in rows
        ]
        assert [row["xid"] > 0 for row in rows if "xid" in row] == [True] * (table == "job_event")
    return found


def is_time(name: str, value: object) -> bool:
    # A time that the spec names is the same for every submit.
    times = ("at", "created_at", "expires_at", "wake_at", "updated_at", "run_at")
    return name in times and isinstance(value, float) and value not in (1.0, 4_000_000_000.125)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_the_function_writes_what_the_store_writes(store, db, number):
    """The rows are equal, and equal to the pure rules in each field and event."""
    await layout.change(db, number)
    for name, chosen in SETTINGS.items():
        await store.queues.create(Queue(name=name, **vars_of(chosen)))
    for n, said in enumerate(SAID):
        asked = spec(**{"queue": "q", **said})
        if asked.key is not None:
            asked.key = f"{asked.key[:250]}-{number}"
        own = JobSpec(**{**vars_of(asked), "key": asked.key and f"{asked.key[:-1]}s"})
        ((result,)) = (await store.jobs.submit(new(own))).results
        job_id = await accepted(db, asked)
        ours = await job_of(store, job_id)
        theirs = await job_of(store, result.unwrap())
        rows, expected = await rows_of(db, ours.seq), await rows_of(db, theirs.seq)
        for named in (rows, expected):
            for row in [*named["job_record"], *named["job_key"]]:
                row.pop("key")
        if number > 1 and not expected["job_event"]:
            expected["job_event"] = rows["job_event"]  # the store wrote them for several jobs
        assert rows == expected, (n, said)
        twin = Twin(job_id, ours.seq, asked, ours.created_at, Rules(), SETTINGS[asked.queue])
        twin.live.reason = ours.reason
        assert ours == twin.job
        assert await store.reads.history(job_id) == [event_of(one) for one in twin.entries]
    claimed = await store.jobs.claim([Claim(("*",), ["w"] * 100)])
    later = {n for n, said in enumerate(SAID) if said.get("delay") or said.get("run_at", 0) > 2}
    assert len(claimed) == 2 * (len(SAID) - len(later))
    counts = {one.queue.name: sum(one.depth.values()) for one in await store.queues.stats()}
    assert sum(counts.values()) == 2 * len(SAID)


def vars_of(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def test_the_function_knows_every_field_and_the_layout():
    """A new field or layout needs a migration with the function's next version."""
    text = [one.sql for one in migrations() if "FUNCTION submit_job" in one.sql][-1]
    (listed,) = re.findall(r"k <> ALL \(ARRAY\[(.*?)\]\)", text, re.DOTALL)
    known = set(re.findall(r"'(\w+)'", listed))
    assert known == {one.name for one in fields(JobSpec)} - NOT_SENT
    assert known - set(COMMON) == {"concurrency_key"}  # of the others, it writes no "more"
    assert re.findall(r"layout\) VALUES \(home.id, 1, (\d)\)", text) == [str(LAYOUT)]


async def test_a_field_that_the_database_does_not_know_is_refused(db, store):
    rows = await db.fetch(CALL, json.dumps([{"queue": "q", "payload": "eA==", "colour": "red"}]))
    assert [tuple(row)[:3] for row in rows] == [("invalid", None, "colour")]
    assert "does not know the field" in rows[0]["message"]


# -- admission ---------------------------------------------------------------------------------

ODD = st.sampled_from([-1.0, 0.0, 1e-9, 1.0, 315_360_000.0, 315_360_001.0, 1e300])
ASKED = st.fixed_dictionaries(
    {
        "payload": st.sampled_from([b"x", b"x", b"", b"x" * 1_048_576, b"x" * 1_048_577]),
        "queue": st.sampled_from(
            ["q", "q", "q", "Q.1-_", "", ".q", "a b", "ü", "x" * 100, "x" * 101, "q\n"]
        ),
        "type": st.sampled_from(["", "t", "ü" * 200, "ü" * 201]),
        "priority": st.sampled_from([0, 0, 9, 10, -1]),
    },
    optional={
        "max_retries": st.sampled_from([0, 1_000, 1_001, -1]),
        "ttl": ODD,
        "timeout": ODD,
        "delay": ODD,
        "run_at": st.sampled_from([-1.0, 0.0, 1e9, 9e9, 253_402_300_799.0, 253_402_300_800.0]),
        "key": st.sampled_from(["k", "", "ü" * 255, "ü" * 256]),
        "concurrency_key": st.sampled_from(["k", "", "ü" * 200, "ü" * 201]),
        "labels": st.sampled_from(
            [
                {},
                {"a": "b"},
                {"": "b"},
                {"a": "ü" * 255},
                {"a": "ü" * 256},
                {"ü" * 256: ""},
                {str(n): "" for n in range(32)},
                {str(n): "" for n in range(33)},
                {f"{n:0255}": "✓" * 255 for n in range(32)},
            ]
        ),
    },
)  # fmt: skip


@pytest.fixture
def ask(postgres_dsn: str):
    """Return the function's answer, in a transaction that is rolled back."""
    with asyncio.Runner() as runner:
        db = runner.run(asyncpg.connect(postgres_dsn))
        store = PostgresStore(postgres_dsn)
        runner.run(store.open())
        runner.run(store.queues.create(Queue(name="q")))

        async def one(asked: JobSpec) -> tuple[Any, ...]:
            transaction = db.transaction()
            await transaction.start()
            try:
                return (await submit(db, asked))[0]
            finally:
                await transaction.rollback()

        yield lambda asked: runner.run(one(asked))
        runner.run(store.close())
        runner.run(db.close())


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(said=ASKED)
def test_the_function_refuses_the_same_specs_as_admission(ask, said):
    asked = JobSpec(**said)
    status, _, field, message = ask(asked)
    if (wrong := refused_field(asked)) is not None:
        assert (status, field) == ("invalid", wrong)
        assert message
    else:
        assert status == ("accepted" if asked.queue == "q" else "no_queue")


def refused_field(asked: JobSpec) -> str | None:
    try:
        admission.check_spec(asked, 1 << 20, 1.7e9)
    except InvalidArgument as error:
        return error.field
    return None


@pytest.mark.parametrize(("delay", "allowed"), [(4.0, True), (5.0, False)])
async def test_a_job_that_would_expire_before_its_start_is_refused(store, db, delay, allowed):
    await store.queues.create(Queue(name="brief", ttl=5.0))
    ((status, _, field, message),) = await submit(db, spec(queue="brief", delay=delay))
    assert (status == "accepted") is allowed
    if not allowed:
        assert (status, field) == ("invalid", "delay")
        assert "its queue's ttl ends 5 s after the submit" in str(message)


async def test_a_server_writes_its_limits_for_the_function(open_store, db):
    await open_store(max_payload_bytes=10, rules=Rules(key_ttl=7.0))
    ((status, _, field, message),) = await submit(db, spec(b"x" * 11))
    assert (status, field) == ("invalid", "payload")
    assert message == "11 bytes are too many; at most 10 are allowed"
    job_id = await accepted(db, spec(key="k"))
    left = await db.fetchval(
        "SELECT k.expires_at - r.created_at FROM job_key k JOIN job_record r USING (id)"
        " WHERE id = $1",
        job_id,
    )
    assert left == pytest.approx(7.0, abs=0.5)


@pytest.mark.parametrize("key", ["cron:tick", "cron:"])
async def test_the_keys_of_schedules_are_refused(store, db, key):
    ((status, _, field, _),) = await submit(db, spec(key=key))
    assert (status, field) == ("invalid", "idempotency_key")


async def test_a_refusal_leaves_the_transaction_usable(store, db):
    async with db.transaction():
        answers = await submit(
            db, spec(queue="nowhere"), spec(priority=10), spec(b"kept"), spec(queue="nowhere")
        )
        assert [one[0] for one in answers] == ["no_queue", "invalid", "accepted", "no_queue"]
    (job,) = await store.reads.list_jobs(JobFilter())
    assert job.payload == b"kept"


async def test_a_list_that_is_too_long_is_refused(store, db):
    with pytest.raises(asyncpg.InvalidParameterValueError, match="1001 are too many; at most 1000"):
        await submit(db, *(spec() for _ in range(1_001)))
    assert len(await submit(db, *(spec() for _ in range(1_000)))) == 1_000


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", "\x1fodd"])
async def test_equal_submits_under_one_key_are_one_job(store, db, key):
    first = (await store.jobs.submit(new(spec(b"1", type="t", key=key)))).results[0].unwrap()
    assert await submit(db, spec(b"1", type="t", key=key)) == [("duplicate", first, None, None)]
    second = await accepted(db, spec(b"2", type="t", key=key + "2"))
    (again,) = (await store.jobs.submit(new(spec(b"2", type="t", key=key + "2")))).results
    assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, second)
    owned = spec(b"2", type="t", key=key + "2", key_owner="ann")
    (again,) = (await store.jobs.submit(new(owned))).results
    assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, second)


@pytest.mark.parametrize("change", [{"payload": b"other"}, {"type": "other"}])
async def test_another_job_under_a_key_is_a_conflict(store, db, change):
    said: dict[str, Any] = {"payload": b"1", "type": "t", "key": "k"}
    first = (await store.jobs.submit(new(spec(**said)))).results[0].unwrap()
    ((status, job_id, field, message),) = await submit(db, spec(**(said | change)))
    assert (status, job_id, field) == ("key_conflict", first, "idempotency_key")
    assert "another payload or type" in str(message)
    second = await accepted(db, spec(**(said | {"key": "k2"})))
    (refused,) = (await store.jobs.submit(new(spec(**(said | change | {"key": "k2"}))))).results
    assert isinstance(refused.error, KeyConflict)
    assert refused.error.job_id == second


async def test_keys_of_servers_of_before_still_match(store, db):
    """These keys have no hash that PostgreSQL can compute, so the job itself is compared."""
    first = (await store.jobs.submit(new(spec(b"1", type="t", key="k")))).results[0].unwrap()
    await db.execute("UPDATE job_key SET sha256 = NULL")
    assert (await submit(db, spec(b"1", type="t", key="k")))[0][:2] == ("duplicate", first)
    assert (await submit(db, spec(b"1", type="u", key="k")))[0][:2] == ("key_conflict", first)
    (again,) = (await store.jobs.submit(new(spec(b"1", type="t", key="k")))).results
    assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, first)


async def test_an_expired_key_is_free(store, db):
    first = await accepted(db, spec(key="k"))
    await db.execute("UPDATE job_key SET expires_at = 1")
    second = await accepted(db, spec(key="k"))
    assert first != second
    await db.execute("UPDATE job_key SET expires_at = 1")
    (third,) = (await store.jobs.submit(new(spec(key="k")))).results
    assert third.status is SubmitStatus.ACCEPTED


async def test_a_key_in_an_open_transaction_stops_no_other_job(store, db, other):
    """The rest of a server's batch is written; only the job with that key is refused for now."""
    transaction = db.transaction()
    await transaction.start()
    first = await accepted(db, spec(key="held"))
    batch = [spec(key=f"k{n}") for n in range(20)] + [spec(key="held"), spec(), spec(key="held")]
    async with patience.timeout(10):
        results = (await store.jobs.submit(new(*batch))).results
    assert [one.status for one in results[:20]] == [SubmitStatus.ACCEPTED] * 20
    assert isinstance(results[20].error, KeyHeld)
    assert isinstance(results[22].error, KeyHeld)
    assert results[21].status is SubmitStatus.ACCEPTED
    # The next batches do not wait for it at all, and its end is noticed.
    results = (await store.jobs.submit(new(spec(key="held"), spec(key="z")))).results
    assert [one.status for one in results] == [SubmitStatus.REFUSED, SubmitStatus.ACCEPTED]
    await transaction.commit()
    (again,) = (await store.jobs.submit(new(spec(key="held")))).results
    assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, first)


async def test_a_key_whose_transaction_is_rolled_back_is_free_again(store, db):
    transaction = db.transaction()
    await transaction.start()
    await accepted(db, spec(key="held"))
    (held,) = (await store.jobs.submit(new(spec(key="held")))).results
    assert isinstance(held.error, KeyHeld)
    await transaction.rollback()
    (free,) = (await store.jobs.submit(new(spec(key="held")))).results
    assert free.status is SubmitStatus.ACCEPTED


async def test_a_transaction_waits_for_no_batch_for_long(store, db, other):
    """A batch that waits for a held key releases the keys that it has taken."""
    first = db.transaction()
    await first.start()
    await accepted(db, spec(key="b"))
    batch = asyncio.create_task(store.jobs.submit(new(spec(key="a"), spec(key="b"))))

    async def waits() -> bool:
        return bool(await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await until(waits)
    async with patience.timeout(10), db.transaction():
        # A deadlock, if the batch waited without end: it has "a" and waits for "b".
        ((status, *_),) = await submit(db, spec(key="a"))
    assert status in ("accepted", "duplicate")
    await first.commit()
    results = (await batch).results
    assert results[1].status is not SubmitStatus.ACCEPTED
    assert await db.fetchval("SELECT count(*) FROM job_record WHERE key = 'b'") == 1
    assert await db.fetchval("SELECT count(*) FROM job_record WHERE key = 'a'") == 1


# -- queues ------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_and_keeps_no_key(store, db):
    await store.queues.create(Queue(name="small", capacity=2))
    answers = await submit(db, *(spec(queue="small", key=f"k{n}") for n in range(3)))
    assert [one[0] for one in answers] == ["accepted", "accepted", "full"]
    assert answers[2][3] == "queue 'small' is full (2 jobs are waiting)"
    assert answers[2][1] is None
    # A repeat is answered although the queue is full, as a server answers it.
    assert (await submit(db, spec(queue="small", key="k0")))[0][0] == "duplicate"
    assert await store.jobs.claim([Claim(("small",), ["w"])])
    assert (await submit(db, spec(queue="small", key="k2")))[0][0] == "accepted"
    (refused,) = (await store.jobs.submit(new(spec(queue="small")))).results
    assert isinstance(refused.error, QueueFull)


async def test_an_open_transaction_does_not_stop_submits_to_a_bounded_queue(store, db, other):
    """Open transactions do not see each other's jobs, so together they may exceed the capacity."""
    await store.queues.create(Queue(name="small", capacity=2))
    async with db.transaction():
        await submit(db, spec(queue="small"), spec(queue="small"))
        async with patience.timeout(10):
            results = (await store.jobs.submit(new(spec(queue="small")))).results
            assert (await submit(other, spec(queue="small")))[0][0] == "accepted"
        assert results[0].status is SubmitStatus.ACCEPTED
    assert (await submit(db, spec(queue="small")))[0][0] == "full"


async def test_an_open_transaction_stops_no_change_of_its_queue_but_the_deletion(store, db):
    async with db.transaction():
        await accepted(db, spec())
        async with patience.timeout(10):
            assert (await store.queues.update("q", {"max_retries": 5})) is not None
            assert await store.queues.pause("q", True)
        with pytest.raises(Conflict, match="a database transaction that has not ended"):
            await store.queues.delete("q")
    assert await store.queues.delete("q") == 1


async def test_a_deleted_queue_is_unknown_and_a_paused_one_is_not(store, db):
    await store.queues.create(Queue(name="gone"))
    await store.queues.delete("gone")
    ((status, _, field, message),) = await submit(db, spec(queue="gone"))
    assert (status, field) == ("no_queue", "queue")
    assert message == "there is no queue 'gone'; create it with: jq-ctl queue create gone"
    with pytest.raises(NotFound, match="there is no queue 'gone'"):
        (await store.jobs.submit(new(spec(queue="gone")))).results[0].unwrap()
    await store.queues.pause("q", True)
    await accepted(db, spec())


# -- transactions ------------------------------------------------------------------------------

WANTED = [Claim(("q",), ["w"] * 10)]


async def claimed(store: PostgresStore, seconds: float = 20.0) -> list[str]:
    """The next jobs that a claim gets, which may have to wait for news."""
    async with patience.timeout(seconds):
        while not (found := await store.jobs.claim(WANTED)):
            await asyncio.sleep(0.02)
    return [one.id for one in found]


async def test_nothing_of_a_rolled_back_transaction_is_there(store, db):
    transaction = db.transaction()
    await transaction.start()
    await submit(db, spec(), spec(key="k"), spec(delay=5.0))
    await transaction.rollback()
    assert await store.reads.list_jobs(JobFilter()) == []
    assert (await store.queues.stats("q"))[0].unfinished == 0
    for table in TABLES:
        assert await db.fetchval(f"SELECT count(*) FROM {table}") == 0
    assert await store.jobs.claim(WANTED) == []


async def test_a_late_commit_is_found_below_jobs_that_were_claimed_later(store, db):
    """Claims have passed the job's number; the notification of the commit names it."""
    transaction = db.transaction()
    await transaction.start()
    late = await accepted(db, spec())
    for _ in range(3):
        await store.jobs.submit(new(*(spec() for _ in range(30))))
        assert len(await store.jobs.claim([Claim(("q",), ["w"] * 30)])) == 30
    assert await store.jobs.claim(WANTED) == []
    await transaction.commit()
    assert await claimed(store) == [late]


async def test_a_commit_of_which_no_word_comes_is_found_by_the_next_full_look(store, db):
    transaction = db.transaction()
    await transaction.start()
    await db.execute("SET LOCAL jobqueue.notify = off")
    late = await accepted(db, spec())
    await store.jobs.submit(new(*(spec() for _ in range(30))))
    await store.jobs.claim([Claim(("q",), ["w"] * 30)])
    await transaction.commit()
    assert await claimed(store) == [late]


async def test_one_word_for_each_queue_priority_and_type(store, db, other):
    words: list[str] = []
    await other.add_listener("jobqueue", lambda *word: words.append(word[3]))
    async with db.transaction():
        others = spec(priority=1), spec(type="t"), spec(delay=9.0)
        await submit(db, *(spec() for _ in range(50)), *others)
    await db.execute("SELECT pg_notify('jobqueue', 'end')")

    async def ended() -> bool:
        return words[-1:] == ["end"]

    await until(ended)
    own = [json.loads(word) for word in words if word.startswith("[0,")]
    assert [len(heads) for _, _, heads in own] == [1, 1, 1]
    lowest = await db.fetchval("SELECT min(seq) FROM job_record")
    assert own[0][2][0][3] == lowest


async def test_very_many_types_are_one_word(store, db, other):
    words: list[str] = []
    await other.add_listener("jobqueue", lambda *word: words.append(word[3]))
    async with db.transaction():
        await submit(db, *(spec(type=f"type {n}") for n in range(400)))
    await db.execute("SELECT pg_notify('jobqueue', 'end')")

    async def ended() -> bool:
        return words[-1:] == ["end"]

    await until(ended)
    assert "[0,1,null]" in words
    assert len(words) < 300


async def test_savepoints(store, db):
    """A rollback to a savepoint removes its jobs and keys; the other jobs are announced."""
    async with db.transaction():
        inner = db.transaction()
        await inner.start()
        await submit(db, spec(b"gone", key="k"))
        await inner.rollback()
        kept = await accepted(db, spec(b"kept", key="k"))
        inner = db.transaction()
        await inner.start()
        released = await accepted(db, spec(b"released"))
        await inner.commit()
    assert sorted(await claimed(store)) == sorted([kept, released])


async def test_two_phase_commit(store, db, other):
    """PostgreSQL prepares a transaction only if it does not notify, which a setting prevents."""
    if await db.fetchval("SHOW max_prepared_transactions") == "0":
        pytest.skip("this PostgreSQL has max_prepared_transactions = 0")
    name = f"jq-{secrets.token_hex(4)}"
    await db.execute("BEGIN")
    await accepted(db, spec())
    with pytest.raises(asyncpg.FeatureNotSupportedError, match="NOTIFY"):
        await db.execute(f"PREPARE TRANSACTION '{name}'")
    await db.execute("BEGIN; SET LOCAL jobqueue.notify = off")
    late = await accepted(db, spec(key="k"))
    await db.execute(f"PREPARE TRANSACTION '{name}'")
    (held,) = (await store.jobs.submit(new(spec(key="k")))).results
    assert isinstance(held.error, KeyHeld)
    await store.jobs.submit(new(*(spec() for _ in range(30))))
    assert len(await store.jobs.claim([Claim(("q",), ["w"] * 30)])) == 30
    await other.execute(f"COMMIT PREPARED '{name}'")
    assert await claimed(store) == [late]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_transactions_with_an_old_snapshot(store, db, isolation):
    async with db.transaction(isolation=isolation):
        await db.fetchval("SELECT count(*) FROM queues")
        await store.queues.create(Queue(name="younger"))
        await store.queues.update("q", {"max_retries": 9})
        await store.jobs.submit(new(spec(key="theirs")))
        job_id = await accepted(db, spec(key="mine"))
        # A queue or key that is newer than the snapshot is unknown to it.
        assert (await submit(db, spec(queue="younger")))[0][0] == "no_queue"
    assert (await job_of(store, job_id)).max_retries == 3
    transaction = db.transaction(isolation=isolation)
    await transaction.start()
    await db.fetchval("SELECT count(*) FROM queues")
    await store.jobs.submit(new(spec(key="younger")))
    with pytest.raises(asyncpg.SerializationError):
        await submit(db, spec(key="younger"))
    await transaction.rollback()


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_no_job_gets_into_a_queue_that_was_deleted_since_the_snapshot(store, db, isolation):
    status = "raised"
    try:
        async with db.transaction(isolation=isolation):
            await db.fetchval("SELECT count(*) FROM queues")
            assert await store.queues.delete("q") == 0
            ((status, *_),) = await submit(db, spec())
    except asyncpg.SerializationError:
        pass
    assert status in ("raised", "no_queue")
    assert await db.fetchval("SELECT count(*) FROM job_record") == 0


async def test_the_stream_gets_events_in_the_order_of_commits_and_waits_for_no_open_transaction(
    store, db
):
    transaction = db.transaction()
    await transaction.start()
    early = await accepted(db, spec())
    lost = db.transaction()
    await lost.start()
    await accepted(db, spec())
    await lost.rollback()
    ids = [one.unwrap() for one in (await store.jobs.submit(new(spec(), spec()))).results]
    found = await store.stream.events_after("", 100)
    assert [event.job_id for _, event in found] == ids
    await transaction.commit()
    later = await store.stream.events_after(found[-1][0], 100)
    assert [event.job_id for _, event in later] == [early]
    assert await store.stream.events_after(later[-1][0], 100) == []


# -- for people --------------------------------------------------------------------------------


async def test_plain_sql(store, db):
    job_id = await db.fetchval(
        """SELECT jq.submit(queue => 'q', type => 'send', payload => '{"to": "a@b.c"}'::jsonb,
               priority => 5, max_retries => 2, ttl => '2 hours', timeout => interval '30 s',
               delay => '1 minute', key => 'order-42', labels => '{"tenant": "a"}')::text"""
    )
    job = await job_of(store, job_id)
    assert (job.payload, job.type) == (b'{"to": "a@b.c"}', "send")
    assert (job.priority, job.max_retries) == (5, 2)
    assert (job.ttl, job.timeout, job.key) == (7_200.0, 30.0, "order-42")
    assert job.run_at == pytest.approx(job.created_at + 60.0)
    assert dict(job.labels) == {"tenant": "a"}
    job_id = await db.fetchval(
        "SELECT jq.submit('q', body => '\\x00ff', run_at => '2100-01-01Z')::text"
    )
    job = await job_of(store, job_id)
    assert (job.payload, job.type, job.run_at) == (b"\x00\xff", "", 4_102_444_800.0)
    job = await job_of(store, await db.fetchval("SELECT jq.submit('q')::text"))
    assert job.payload == b"{}"


@pytest.mark.parametrize(
    ("call", "state", "text"),
    [
        ("queue => 'nowhere'", "42704", "there is no queue 'nowhere'"),
        ("queue => 'a b'", "22023", "queue: 'a b' is not a queue name"),
        ("queue => 'q', priority => 10", "22023", "priority: 10 is outside 0 to 9"),
        ("queue => 'q', ttl => '-1 s'", "22023", "ttl: must be more than 0"),
        ("queue => 'q', labels => '[1]'", "22023", "labels: expected an object"),
        ("queue => 'q', labels => '{\"a\": 1}'", "22023", "labels: expected an object"),
        ("queue => 'q', run_at => 'infinity'", "22023", "run_at: must be a time"),
        ("queue => 'q', body => ''", "22023", "payload: must not be empty"),
        ("queue => 'small'", "53400", "queue 'small' is full"),
        ("queue => 'q', key => 'k', payload => '1'", "23505", "'k' was used for job"),
    ],
)  # fmt: skip
async def test_a_refusal_is_an_error_in_plain_sql(store, db, call, state, text):
    await store.queues.create(Queue(name="small", capacity=1))
    await db.execute("SELECT jq.submit('small')")
    await db.execute("SELECT jq.submit('q', key => 'k')")
    with pytest.raises(asyncpg.PostgresError, match=re.escape(text)) as raised:
        await db.fetchval(f"SELECT jq.submit({call})")
    assert raised.value.sqlstate == state


async def test_a_trigger(store, db):
    await db.execute(
        """
        CREATE TABLE customer (id int PRIMARY KEY, email text NOT NULL);
        CREATE FUNCTION greet() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM jq.submit(queue => 'q', type => 'greet',
                              payload => jsonb_build_object('to', NEW.email));
            RETURN NEW;
        END $$;
        CREATE TRIGGER greet AFTER INSERT ON customer FOR EACH ROW EXECUTE FUNCTION greet();
        INSERT INTO customer VALUES (1, 'a@b.c'), (2, 'b@b.c');
        """
    )
    jobs = await store.reads.list_jobs(JobFilter())
    assert {job.payload for job in jobs} == {b'{"to": "a@b.c"}', b'{"to": "b@b.c"}'}


# -- rights ------------------------------------------------------------------------------------


async def connect_as(dsn: str, db: Any) -> tuple[str, Any]:
    """A new role without any rights, and a connection of it."""
    name, password = f"clerk_{secrets.token_hex(4)}", secrets.token_hex(8)
    await db.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    parts = urlsplit(dsn)
    place = parts.netloc.rpartition("@")[2]
    own = urlunsplit(parts._replace(netloc=f"{name}:{password}@{place}"))
    return name, await asyncpg.connect(own)


@pytest_asyncio.fixture
async def clerk(postgres_dsn: str, db: Any) -> AsyncIterator[Any]:
    """A connection of a role that may only submit."""
    name, connection = await connect_as(postgres_dsn, db)
    await db.execute(f"GRANT USAGE ON SCHEMA jq TO {name}")
    await db.execute(f"GRANT EXECUTE ON FUNCTION jq.submit, jq.submit_jobs TO {name}")
    yield connection
    await connection.close()
    await db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_a_role_that_may_only_submit(store, clerk):
    await accepted(clerk, spec(key="k"))
    assert await clerk.fetchval("SELECT jq.submit('q')")
    for statement in (
        "SELECT * FROM job_record",
        "INSERT INTO queue_tally (queue) VALUES (1)",
        "SELECT jq.complete(1, 1, 'w', NULL, 0)",
        "SELECT submit_job('{}')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await clerk.execute(statement)


async def test_a_role_without_rights_may_not_submit(store, db, clerk):
    await db.execute("REVOKE EXECUTE ON FUNCTION jq.submit FROM PUBLIC, " + await user(clerk))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await clerk.execute("SELECT jq.submit('q')")


async def user(connection: Any) -> str:
    return str(await connection.fetchval("SELECT current_user"))


async def test_the_callers_own_tables_and_functions_are_not_used(store, db, clerk):
    """Neither the caller's search path nor its temporary tables are used."""
    own = await user(clerk)
    await db.execute(f"CREATE SCHEMA {own} AUTHORIZATION {own}")
    await clerk.execute(
        f"""
        CREATE TABLE queues (id int, name text, deleted boolean, max_retries int, ttl float8,
                             timeout float8, capacity bigint);
        INSERT INTO queues VALUES (1, 'mine', false, 1, NULL, NULL, 0);
        CREATE TEMP TABLE job_record AS SELECT 1 AS seq;
        CREATE FUNCTION kind_of(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1/0::bigint';
        CREATE FUNCTION sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea';
        SET search_path = {own}, pg_temp, public, pg_catalog;
        """
    )
    assert (await submit(clerk, spec(queue="mine")))[0][0] == "no_queue"
    await accepted(clerk, spec(key="k"))
    assert len(await store.reads.list_jobs(JobFilter())) == 1
    await db.execute(f"DROP SCHEMA {own} CASCADE")


async def test_a_database_has_room_for_one_job_queue(db):
    """The functions of a second job queue would submit to the first one."""
    await db.execute("CREATE SCHEMA second; SET search_path = second")
    (text,) = [one.sql for one in migrations() if "CREATE SCHEMA jq" in one.sql]
    with pytest.raises(asyncpg.RaiseError, match="belongs to another job queue in this database"):
        await db.execute(text[text.index("DO $$") : text.index("-- The first field")])


async def test_a_role_that_may_not_create_the_schema_is_told_the_command(empty_postgres_dsn, db):
    text = next(one.sql for one in migrations() if "CREATE SCHEMA jq" in one.sql)
    name, connection = await connect_as(empty_postgres_dsn, db)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=f"AUTHORIZATION {name}"):
            await connection.execute(text[text.index("DO $$") : text.index("-- The first field")])
    finally:
        await connection.close()
        await db.execute(f"DROP ROLE {name}")
