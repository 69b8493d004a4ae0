"""The SQL of docs/transactions.md, as it stands there."""

from __future__ import annotations

import secrets

from jobqueue.core.queue import Queue
from tests.journeys.pages import blocks


async def test_the_examples_of_the_docs(store, db):
    await store.queues.create(Queue(name="mail"))
    first, trigger, grants = blocks("docs/transactions.md", "sql")
    await db.execute(first)
    submits, look = trigger.rsplit("SELECT queue", 1)
    await db.execute(submits)
    rows = await db.fetch(f"SELECT queue{look}")
    assert [tuple(row) for row in rows] == [
        ("mail", "send", "PENDING", '{"to": "a@b.c", "subject": "hello"}'),
        ("mail", "send", "PENDING", '{"to": "b@b.c", "subject": "welcome"}'),
    ]
    role = f"shop_{secrets.token_hex(4)}"
    await db.execute(grants.replace("shop", role))
    for function in ("submit", "submit_jobs"):
        name = await db.fetchval(
            "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = $1", function
        )
        assert await db.fetchval("SELECT has_function_privilege($1, $2, 'EXECUTE')", role, name)
    await db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
