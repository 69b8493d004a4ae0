"""Jobs without a concurrency key pay nothing for keys, and jobs with one stay out of ranges."""

from __future__ import annotations

import re

import pytest

from jobqueue.core.job import Transition
from jobqueue.core.store import Claim
from jobqueue.stores.postgres.statements import BATCH, SQL
from tests.stores.driver import new, spec

INDEXES = ("job_live_by_key", "job_live_key_held")
# Statements of claims in queues whose keys count, of figures, and those that give a job a new row
# after it has left the plain path.
OF_KEYS = {"key_state", "key_states", "key_lines", "key_candidates"}
RARE = {"revive", "restore_live"}


def test_statements_of_plain_jobs_do_not_speak_of_keys():
    for texts in (SQL, BATCH):
        speaking = {name for name, text in texts.items() if re.search(r"\bckey", text)}
        assert speaking - OF_KEYS - RARE == set()


@pytest.mark.parametrize("few", [1, 1_000])
async def test_plain_jobs_are_in_no_index_of_keys(store, db, few):
    """Jobs in ranges, and jobs in rows of their own, on all their ways."""
    await db.execute("SELECT pg_stat_reset()")  # tests share databases
    await store.jobs.submit(new(*(spec() for _ in range(40)), spec(delay=60.0), spec(key="k")))
    held = await store.jobs.claim([Claim(("q",), ["w"] * 30)])
    assert len(held) == 30
    moves = [
        (Transition.succeeded(one.seq, one.lease, b"r"), Transition.failed(one.seq, one.lease, "e"))
        for one in held
    ]
    await store.jobs.apply([moves[n][n % 2] for n in range(20)])
    for index in INDEXES:
        scans = await db.fetchval(
            "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = $1", index
        )
        assert await db.fetchval("SELECT pg_relation_size($1::text::regclass)", index) == 8_192
        assert scans == 0
    assert await db.fetchval("SELECT count(*) FROM queue_bucket") == 0


@pytest.mark.parametrize("few", [1])
async def test_jobs_with_keys_have_rows_and_plain_jobs_beside_them_have_ranges(store, db, few):
    await store.jobs.submit(new(*(spec(concurrency_key="a") for _ in range(20))))
    await store.jobs.submit(new(*(spec() for _ in range(20))))
    assert await db.fetchval("SELECT count(*) FROM job_live WHERE ckey IS NOT NULL") == 20
    assert await db.fetchval("SELECT count(*) FROM job_live WHERE ckey IS NULL") == 0
    assert len(await store.jobs.claim([Claim(("q",), ["w"] * 40)])) == 40
