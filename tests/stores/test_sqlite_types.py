"""Peculiar to SQLite: what a claim by type costs, counted in steps of SQLite's machine."""

from __future__ import annotations

import sqlite3
import time

import pytest

from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim, Rules
from jobqueue.stores.sqlite.store import SqliteStore
from jobqueue.stores.sqlite.writes import JobWriter
from tests.stores.driver import new, spec


async def steps_of(store: SqliteStore, claim: Claim) -> tuple[int, int]:
    """How many jobs a claim finds, and how many steps of SQLite's machine that takes."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    def look(db: sqlite3.Connection) -> int:
        db.set_progress_handler(count, 1)
        db.execute("SAVEPOINT look")
        try:
            return len(JobWriter(db, time.time(), Rules()).claim([claim]))
        finally:
            db.execute("ROLLBACK TO look")
            db.execute("RELEASE look")
            db.set_progress_handler(None, 0)

    return await store._database.write("look", look), steps


@pytest.mark.parametrize("weights", [None, {9: 3, 1: 1}], ids=["by priority", "by weight"])
@pytest.mark.parametrize("known", [["a"], ["a", "c"], ["a", *(f"z{n}" for n in range(90))]],
                         ids=["one", "two", "many"])  # fmt: skip
async def test_jobs_of_other_types_in_front_cost_nothing(opened, known: list[str], weights):
    store: SqliteStore = await opened()
    await store.queues.create(Queue(name="mixed", priority_weights=weights))
    await store.jobs.submit(new(*(spec(queue="mixed", type=one) for one in ["a", "a", "c"])))
    claim = Claim(("mixed",), ["w"] * 10, types=frozenset(known))
    front = new(*(spec(queue="mixed", type="b", priority=9) for _ in range(10)))
    await store.jobs.submit(front)
    few = await steps_of(store, claim)
    for _ in range(2):
        await store.jobs.submit(
            new(*(spec(queue="mixed", type="b", priority=9) for _ in range(1_000)))
        )
    found, steps = await steps_of(store, claim)
    assert found == few[0] == (3 if "c" in known else 2)
    assert steps <= few[1] * 1.01


async def test_types_without_jobs_in_a_queue_do_not_make_its_claims_dearer(opened):
    store: SqliteStore = await opened()
    await store.jobs.submit(new(*(spec(type="a") for _ in range(20))))
    one = await steps_of(store, Claim(("q",), ["w"] * 10, types=frozenset("a")))
    every = await steps_of(store, Claim(("q",), ["w"] * 10))
    many = {"a", *(f"z{n}" for n in range(1_000))}
    thousand = await steps_of(store, Claim(("q",), ["w"] * 10, types=frozenset(many)))
    assert one[0] == every[0] == thousand[0] == 10
    assert every[1] <= one[1] + 100
    assert thousand[1] <= one[1] + 100


async def test_other_types_do_not_make_a_claim_dearer_however_many_there_are(opened):
    store: SqliteStore = await opened()
    known = Claim(("q",), ["w"] * 10, types=frozenset({"a", "b", *(f"z{n}" for n in range(6))}))
    await store.jobs.submit(new(*(spec(type="ab"[n % 2]) for n in range(20))))
    await store.jobs.submit(new(*(spec(type=f"t{n}", priority=9) for n in range(20))))
    few = await steps_of(store, known)
    await store.jobs.submit(new(*(spec(type=f"t{n}", priority=9) for n in range(1_000))))
    assert await steps_of(store, known) == few
