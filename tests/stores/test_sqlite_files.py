"""Peculiar to SQLite: full and read-only disks, foreign files, opening and closing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobqueue.core.errors import Code, PermissionDenied, Unavailable
from jobqueue.core.identity import Writer
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.store import Claim
from jobqueue.stores.sqlite.connection import SCHEMA_VERSION
from jobqueue.stores.sqlite.statements import SQL
from jobqueue.stores.sqlite.store import SqliteStore
from tests.services.places import new_folder
from tests.stores.driver import accept, new, spec, worker

# -- disks that will not take more -----------------------------------------------------------


@pytest.mark.req("jq:NFR-005")
async def test_a_full_disk_is_an_error_to_the_submitter_and_accepts_nothing(opened):
    store: SqliteStore = await opened()
    await accept(store)

    async def allow(pages: int) -> None:
        await store._database.write(
            "limit", lambda db: db.execute(f"PRAGMA max_page_count = {pages}")
        )

    await allow(1)  # SQLite takes the present size if that is more
    accepted: list[str] = []
    refused = []
    for _ in range(200):
        jobs = new(*(spec(os.urandom(2_000)) for _ in range(3)))
        try:
            accepted += [r.unwrap() for r in (await store.jobs.submit(jobs)).results]
        except Unavailable:
            refused += [job.id for job in jobs]
            if len(refused) >= 9:
                break
    assert len(refused) >= 9
    for job_id in refused:
        assert await store.reads.get(job_id) is None
    await allow(1_000_000)
    for job_id in await accept(store, 3) + accepted:
        assert await store.reads.get(job_id) is not None
    assert len(await store.jobs.claim([Claim(("q",), ["w"] * 999)])) == len(accepted) + 4


async def test_one_callers_full_disk_does_not_fail_a_small_write_beside_it(opened):
    """Operations that share a transaction are answered each on its own."""
    store: SqliteStore = await opened()
    await accept(store)
    pages = await store._database.write(
        "size", lambda db: db.execute("PRAGMA page_count").fetchone()[0]
    )
    await store._database.write(
        "limit", lambda db: db.execute(f"PRAGMA max_page_count = {pages + 20}")
    )
    large = store.jobs.submit(new(spec(os.urandom(1_000_000))))
    small = [store.jobs.submit(new(spec())) for _ in range(5)]
    outcomes = await asyncio.gather(large, *small, return_exceptions=True)
    assert isinstance(outcomes[0], Unavailable)
    assert not [outcome for outcome in outcomes[1:] if isinstance(outcome, BaseException)]


async def test_a_health_check_notices_a_full_disk(opened):
    store: SqliteStore = await opened()
    await store.ping()
    await store._database.write("limit", lambda db: db.execute("PRAGMA max_page_count = 1"))
    for _ in range(200):
        try:
            await store.jobs.submit(new(spec(os.urandom(4_000))))
        except Unavailable:
            break
    with contextlib.suppress(Unavailable):
        while True:  # fill the last free pages
            await store.jobs.submit(new(spec()))
    with pytest.raises(Unavailable):
        await store.ping()


@pytest.mark.req("jq:NFR-005")
async def test_a_file_that_cannot_grow_gives_no_false_ok(child, opened, path: Path):
    """The operating system refuses the write itself, as a full or failing disk does."""
    limited = await child("small-disk", path)
    said = await limited.hears()
    assert said["error"] in (Code.UNAVAILABLE, Code.OUTCOME_UNKNOWN)
    later = await limited.hears()
    await limited.process.wait()
    store: SqliteStore = await opened()
    for job_id in [*said["accepted"], later]:
        assert await store.reads.get(job_id) is not None
    if said["error"] == Code.UNAVAILABLE:
        assert await store.reads.get(said["refused"]) is None


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that any user can reach, whoever runs the tests.

    Not below pytest's own, which every other pytest of this user closes to others when it starts.
    """
    with new_folder() as made:
        yield made


@pytest.mark.req("jq:NFR-005")
@pytest.mark.parametrize("what", ["file", "folder"])
async def test_what_is_read_only_is_unavailable_and_says_why(
    child, opened, outside: Path, what: str
):
    folder = outside / "data"
    folder.mkdir()
    path = folder / "jobs.db"
    store: SqliteStore = await opened(path)
    await accept(store, 2)
    await store.close()
    if what == "file":
        path.chmod(0o444)
        folder.chmod(0o777)
    else:
        path.chmod(0o666)
        folder.chmod(0o555)
    refused = await child("submit", path, "as-nobody")
    said = await refused.hears()
    if said == "ready":  # it opened: then the submit is what must fail
        refused.tell()
        said = await refused.hears()
    assert said["code"] == Code.UNAVAILABLE
    why = "write the file" if what == "file" else f"write in {folder}, where SQLite keeps files"
    assert f"cannot open {path}: this user may not {why}" in said["message"]
    await refused.process.wait()
    folder.chmod(0o755)
    path.chmod(0o644)
    again: SqliteStore = await opened(path)
    (stats,) = await again.queues.stats("q")
    assert stats.depth[State.PENDING] == 2
    await accept(again)


# -- files that are none of ours -------------------------------------------------------------


async def refusal(path: Path) -> str:
    store = SqliteStore(path)
    try:
        with pytest.raises(Unavailable) as refused:
            await store.open()
    finally:
        await store.close()
    assert str(path) in refused.value.message or path.parent.name in refused.value.message
    return refused.value.message


async def test_a_file_that_is_no_database_is_left_alone(path: Path):
    path.write_text("these are my notes, not a database\n" * 100)
    before = path.read_bytes()
    assert "it is not an SQLite database; name another file" in await refusal(path)
    assert path.read_bytes() == before


async def test_another_programs_database_is_left_alone(path: Path):
    with contextlib.closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE bookmarks (url TEXT)")
        foreign.commit()
    assert "another program" in await refusal(path)
    with contextlib.closing(sqlite3.connect(path)) as foreign:
        tables = [row[0] for row in foreign.execute("SELECT name FROM sqlite_master")]
        assert foreign.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert tables == ["bookmarks"]


async def test_a_file_of_a_newer_jobqueue_is_refused(opened, path: Path):
    store: SqliteStore = await opened()
    await store.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute("PRAGMA user_version = 999")
    assert "newer" in await refusal(path)


async def test_a_path_that_cannot_be_used_is_named(tmp_path: Path):
    assert "it is a folder; name a file in it" in await refusal(tmp_path)
    blocked = tmp_path / "plain-file"
    blocked.write_text("x")
    assert "plain-file" in await refusal(blocked / "jobs.db")


async def test_missing_folders_are_made(tmp_path: Path, opened):
    store: SqliteStore = await opened(tmp_path / "a" / "b c" / "jöbs #1?.db")
    await accept(store)
    assert (tmp_path / "a" / "b c" / "jöbs #1?.db").stat().st_size > 0


# -- life and death --------------------------------------------------------------------------


async def test_closing_twice_or_before_opening_is_fine(path: Path):
    store = SqliteStore(path)
    await store.close()
    await store.open()
    await store.close()
    await store.close()


async def test_a_closed_store_says_so(path: Path):
    store = SqliteStore(path)
    await store.open()
    await store.close()
    for call in (store.jobs.submit(new(spec())), store.reads.get("x"), store.ping()):
        with pytest.raises(Unavailable):
            await call
    with pytest.raises(Unavailable):
        store.workers.pulse("w", 1, [])


async def test_what_was_posted_before_close_is_kept(opened):
    store: SqliteStore = await opened()
    jobs = [new(spec()) for _ in range(50)]
    tasks = [asyncio.create_task(store.jobs.submit(one)) for one in jobs]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    answered = [
        task.result().results[0].unwrap()
        for task in tasks
        if not task.cancelled() and task.exception() is None
    ]
    again: SqliteStore = await opened()
    for job_id in answered:
        assert await again.reads.get(job_id) is not None


async def test_concurrent_submits_share_transactions(opened):
    """Group commit: a hundred callers at once need far fewer than a hundred fsyncs."""
    commits: list[str] = []

    class Listener(Observer):
        def queried(self, name: str, seconds: float) -> None:
            commits.append(name)

    store: SqliteStore = await opened()
    await store.close()
    listening = SqliteStore(store.path, observer=Listener())
    await listening.open()
    try:
        await asyncio.gather(*(listening.jobs.submit(new(spec())) for _ in range(100)))
    finally:
        await listening.close()
    assert commits.count("submit") == 100
    assert commits.count("commit") < 30


async def test_an_outage_is_logged_once_and_so_is_its_end(opened, caplog):
    caplog.set_level("INFO", "jobqueue.stores.sqlite")
    store: SqliteStore = await opened()

    async def allow(pages: int) -> None:
        await store._database.write(
            "limit", lambda db: db.execute(f"PRAGMA max_page_count = {pages}")
        )

    await allow(1)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await store.jobs.submit(new(spec(os.urandom(200_000))))
    await allow(1_000_000)
    await accept(store)
    said = [r.getMessage() for r in caplog.records if r.name == "jobqueue.stores.sqlite"]
    assert [line.split(":")[0] for line in said] == [
        f"cannot write to SQLite file {store.path}",
        f"SQLite file {store.path} can be written again",
    ]


_OLD = (0.0, 10, 0.0, '["x"]', True)  # of which jobs ``old_done`` is asked


async def test_retention_finds_old_jobs_without_looking_at_the_others(opened):
    store: SqliteStore = await opened()
    sql = "EXPLAIN QUERY PLAN " + SQL["old_done"]
    rows = await store._database.write("plan", lambda db: db.execute(sql, _OLD).fetchall())
    plan = " ".join(str(row[3]) for row in rows)
    assert "SEARCH" in plan
    # Not of those it has found, and of the names it was given.
    assert "SCAN" not in plan.replace("SCAN old", "").replace("SCAN json_each", "")
    assert "TEMP B-TREE" not in plan


async def test_retention_does_not_look_at_everything_that_waits_for_the_stream(opened):
    """Nobody else writes meanwhile, and Kafka may be away for days."""
    store: SqliteStore = await opened()
    many = 2_000
    await accept(store, many)
    held = await store.jobs.claim([Claim(("q",), ["w"] * many)])
    await store.jobs.apply([Transition.succeeded(one.seq, one.lease, None) for one in held])
    term = await store.leadership.lead(7, 60.0)
    assert term is not None
    await store.stream.begin(term)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    def look(db: sqlite3.Connection) -> list[object]:
        db.set_progress_handler(count, 1)
        try:
            return db.execute(SQL["old_done"], (1e12, *_OLD[1:])).fetchall()
        finally:
            db.set_progress_handler(None, 0)

    assert await store._database.write("look", look) == []
    assert 0 < steps < many


# -- files of earlier versions ---------------------------------------------------------------


# What undoes each upgrade: a file as an earlier version left it.
_UNDO = {
    18: "DROP INDEX bucket_full; DROP INDEX live_keyed; DROP INDEX live_by_key;"
    " DROP INDEX live_key_held; ALTER TABLE live DROP COLUMN ckey;",
    17: "DROP TABLE unique_key;",
    16: "ALTER TABLE worker DROP COLUMN breakers;",
    15: "DROP TABLE schedule;",
    14: "DROP TABLE bucket;",
    13: "ALTER TABLE queue DROP COLUMN more; ALTER TABLE rec DROP COLUMN more;",
    12: "ALTER TABLE worker DROP COLUMN overrun;",
    11: "DROP TABLE instance;",
    10: "ALTER TABLE queue DROP COLUMN retention;"
    " ALTER TABLE queue DROP COLUMN dead_letter_retention;",
    9: "DROP INDEX worker_owner; ALTER TABLE worker DROP COLUMN owner;",
    8: "ALTER TABLE queue DROP COLUMN retry_base; ALTER TABLE queue DROP COLUMN retry_max;"
    " ALTER TABLE queue DROP COLUMN retry_jitter;",
    7: "DROP TABLE progress;",
    6: "DROP TRIGGER live_type; DROP INDEX live_ready; ALTER TABLE live DROP COLUMN type;"
    " CREATE INDEX live_ready ON live (queue, prio, seq) WHERE ready = 1;"
    " ALTER TABLE worker DROP COLUMN types;",
    5: "ALTER TABLE leader DROP COLUMN name; ALTER TABLE leader DROP COLUMN since;"
    " ALTER TABLE leader DROP COLUMN named;",
    4: "DROP TABLE outbox; DROP TABLE stream;"
    " ALTER TABLE event DROP COLUMN started_at; ALTER TABLE event DROP COLUMN due;",
    3: "DROP INDEX rec_time;",
    2: "DROP TABLE leader; DROP TABLE control; ALTER TABLE worker DROP COLUMN link;",
}


def downgrade(path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for step in range(SCHEMA_VERSION, version, -1):
            db.executescript(_UNDO[step])
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()


async def test_a_file_of_schema_1_is_upgraded_with_what_is_in_it(opened, path: Path):
    store: SqliteStore = await opened()
    (job_id,) = await accept(store)
    await store.close()
    downgrade(path, 1)
    again: SqliteStore = await opened()
    assert [a.id for a in await again.jobs.claim([Claim(("q",), ["w"])])] == [job_id]
    term = await again.leadership.lead(7, 10.0)
    assert term is not None
    assert term.epoch == 1
    await again.close()
    third: SqliteStore = await opened()
    renewed = await third.leadership.lead(7, 10.0)
    assert renewed == term  # an upgrade is made once
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


async def test_a_worker_of_an_earlier_file_belongs_to_the_first_that_registers_it(
    opened, path: Path
):
    store: SqliteStore = await opened()
    await store.workers.register(worker("w", 1, owner="alice"))
    await store.close()
    downgrade(path, 8)
    again: SqliteStore = await opened()
    assert [one.info.owner for one in await again.workers.all()] == [""]
    await again.workers.register(worker("w", 1, owner="bob"))
    with pytest.raises(PermissionDenied):
        await again.workers.register(worker("w", 1, owner="alice"))


async def test_jobs_of_an_earlier_file_are_claimed_by_type(opened, path: Path):
    store: SqliteStore = await opened()
    jobs = new(*(spec(type="ab"[n % 2], priority=n) for n in range(6)), spec(type="b"))
    await store.jobs.submit(jobs)
    await store.workers.register(worker("old"))
    (held, failed) = await store.jobs.claim([Claim(("q",), ["old"] * 2)])
    await store.jobs.apply([Transition.handed_back(failed.seq, failed.lease)])
    await store.close()
    downgrade(path, 5)
    again: SqliteStore = await opened()
    assert [one.info.types for one in await again.workers.all()] == [None]
    got = await again.jobs.claim([Claim(("q",), ["w"] * 9, types=frozenset("a"))])
    assert [one.id for one in got] == [jobs[n].id for n in (4, 2, 0)]
    await again.jobs.apply([Transition.handed_back(held.seq, held.lease)])
    got = await again.jobs.claim([Claim(("q",), ["w"] * 9, types=frozenset("b"))])
    assert [one.id for one in got] == [jobs[n].id for n in (5, 3, 1, 6)]


async def test_a_process_from_before_the_upgrade_goes_on(opened, path: Path):
    """It has the file open since schema 5, and writes what it always wrote."""
    store: SqliteStore = await opened()
    (job,) = new(spec(type="b"))
    await store.jobs.submit([job])
    columns = (
        "seq, queue, prio, ready, state, version, attempt, retry_count, max_retries, timeout,"
        " run_at, expires_at, due, updated_at, reason"
    )
    with contextlib.closing(sqlite3.connect(path)) as old:
        row = old.execute(f"DELETE FROM live RETURNING {columns}").fetchone()
        old.execute(f"INSERT INTO live ({columns}) VALUES ({', '.join('?' * 15)})", row)
        old.commit()
    assert await store.jobs.claim([Claim(("q",), ["w"], types=frozenset({"a", ""}))]) == []
    (got,) = await store.jobs.claim([Claim(("q",), ["w"], types=frozenset("b"))])
    assert (got.id, got.type) == (job.id, "b")


async def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path):
    """Turning a new file into a WAL file needs it alone, and SQLite does not wait for that."""
    for n in range(10):
        stores = [SqliteStore(tmp_path / f"{n}.db") for _ in range(8)]
        try:
            await asyncio.gather(*(store.open() for store in stores))
        finally:
            for store in stores:
                await store.close()


@pytest.mark.parametrize("had_a_stream", [True, False])
async def test_the_records_of_an_earlier_file_are_its_own(opened, path: Path, had_a_stream: bool):
    """They do not say whose they are."""
    store: SqliteStore = await opened()
    term = await store.leadership.lead(1, 60.0)
    assert term is not None
    if had_a_stream:
        await store.stream.begin(term)
    await store.close()
    downgrade(path, 9)
    known = await (await opened()).stream.identity()
    assert known.goes_on_from(Writer()) is had_a_stream
