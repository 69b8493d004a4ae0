"""Other processes on the same SQLite file: ``python -m tests.stores.child COMMAND PATH``.

Each prints lines of JSON and does one step for each line that it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sqlite3
import sys
import tempfile
import time
from typing import Any

from jobqueue.core.errors import JobQueueError
from jobqueue.core.queue import Queue
from jobqueue.core.store import Claim
from jobqueue.stores.sqlite.store import SqliteStore
from tests.stores.driver import new, spec

NOBODY = 65_534


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def await_word() -> str:
    return sys.stdin.readline().strip()


async def submit(store: SqliteStore) -> None:
    """One job for each line read; says its id and the time it was answered."""
    say("ready")
    while await_word():
        (result,) = (await store.jobs.submit(new(spec()))).results
        say([result.unwrap(), time.monotonic()])


async def flood(store: SqliteStore) -> None:
    """Submit, claim and finish without end; says which ids were accepted, until killed."""
    while True:
        submission = await store.jobs.submit(new(*(spec() for _ in range(5))))
        say([result.unwrap() for result in submission.results])
        await store.jobs.claim([Claim(("q",), ["child"] * 2)])


async def claim(store: SqliteStore) -> None:
    """At a word, claim until nothing is left."""
    say("ready")
    await_word()
    while assigned := await store.jobs.claim([Claim(("q",), [f"w{os.getpid()}"] * 7)]):
        say([a.id for a in assigned])
    say("empty")


async def small_disk(store: SqliteStore) -> None:
    """Submit until the file may grow no more, then with room again."""
    await store.jobs.submit(new(spec()))
    accepted = []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal = os.stat(f"{store.path}-wal").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal + 40_000, limits[1]))
    error = ""
    for _ in range(100):
        jobs = new(spec(os.urandom(4_000)))
        try:
            (result,) = (await store.jobs.submit(jobs)).results
        except JobQueueError as refused:
            error = refused.code
            break
        accepted.append(result.unwrap())
    say({"accepted": accepted, "refused": jobs[0].id, "error": error})
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (result,) = (await store.jobs.submit(new(spec()))).results
    say(result.unwrap())


async def with_store(command: str, path: str) -> None:
    store = SqliteStore(path)
    try:
        await store.open()
        await store.queues.create(Queue(name="q"))
        await {"submit": submit, "flood": flood, "claim": claim, "small-disk": small_disk}[command](
            store
        )
    except JobQueueError as error:
        say({"code": error.code, "message": error.message})
    finally:
        await store.close()


def lock(path: str) -> None:
    """Hold the write lock from one word to the next."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        say("locked")
        await_word()
        connection.execute("ROLLBACK")
        say("released")


def warm_up() -> None:
    """Load everything: without rights the interpreter's own files may be out of reach."""

    async def use_one(path: str) -> None:
        store = SqliteStore(path)
        await store.open()
        await store.queues.create(Queue(name="q"))
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(use_one(f"{folder}/jobs.db"))


def main() -> None:
    command, path = sys.argv[1:3]
    if "as-nobody" in sys.argv[3:] and os.getuid() == 0:
        warm_up()
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if command == "lock":
        lock(path)
    else:
        asyncio.run(with_store(command, path))


if __name__ == "__main__":
    main()
