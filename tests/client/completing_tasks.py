"""Tasks whose handlers end their attempts in transactions of their own, also in processes."""

from __future__ import annotations

import os
import sqlite3

import psycopg

from jobqueue import Context, JobQueue

URL = os.environ.get("COMPLETING_URL", "memory://")
app = JobQueue(URL)


@app.task(executor="process")
def in_a_process(ctx: Context, ends: str) -> str:
    """Count in the same transaction; ``ends`` says how it ends."""
    if URL.startswith("sqlite"):
        return _on_sqlite(ctx, ends)
    with psycopg.connect(URL) as connection:
        connection.execute("UPDATE counter SET n = n + 1")
        ctx.complete_blocking("completed", connection=connection)
        if ends == "rolled back" and ctx.attempt == 1:
            connection.rollback()
    return "returned"


@app.task(executor="process")
async def async_in_a_process(ctx: Context) -> str:
    async with await psycopg.AsyncConnection.connect(URL) as connection:
        await connection.execute("UPDATE counter SET n = n + 1")
        await ctx.complete("completed", connection=connection)
    return "returned"


def _on_sqlite(ctx: Context, ends: str) -> str:
    with sqlite3.connect(URL.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE counter SET n = n + 1")
        ctx.complete_blocking("completed", connection=connection)
        if ends == "rolled back" and ctx.attempt == 1:
            connection.rollback()
    connection.close()
    return "returned"
