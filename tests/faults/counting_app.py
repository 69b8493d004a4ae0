"""An application whose handlers count in the database of their jobs, each in one transaction."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3

import asyncpg
from ledger_app import note  # type: ignore[import-not-found]

from jobqueue import Context, JobQueue

app = JobQueue("memory://")
URL = os.environ["JQ_DB_URL"]


@app.task(name="count", timeout=30)
async def count(number: int, ctx: Context) -> int:
    """Increment, end the attempt, and commit; a kill may happen between any two steps."""
    note(ctx)
    if URL.startswith("sqlite"):
        await asyncio.sleep(random.uniform(0, 0.01))
        with sqlite3.connect(URL.removeprefix("sqlite:///"), timeout=30) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute("UPDATE counter SET n = n + 1")
            file.execute("INSERT INTO counted VALUES (?, ?)", (number, ctx.attempt))
            await ctx.complete(number, connection=file)
        file.close()
        return -1  # ignored, as below
    connection = await asyncpg.connect(URL)
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO counted VALUES ($1, $2)", number, ctx.attempt)
            await asyncio.sleep(random.uniform(0, 0.01))
            await ctx.complete(number, connection=connection)
            await asyncio.sleep(random.uniform(0, 0.01))
            await connection.execute("UPDATE counter SET n = n + 1")
    finally:
        await connection.close()
    return -1  # ignored: the transaction has the result
