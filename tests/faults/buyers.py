"""A program of users' transactions: each writes an order and a job; every second one commits.

``python -m tests.faults.buyers DRIVER URL FIRST COUNT``. It is killed at any moment. What it has
committed is in the table ``orders``, which its transactions write, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import sys
import time
from typing import Any

from jobqueue import JobQueue
from tests.client.drivers import BLOCKING, RolledBack, begun, begun_blocking

PAUSE = 0.004  # seconds, in which most kills come


def app_of(url: str) -> tuple[JobQueue, Any]:
    app = JobQueue(url)

    @app.task(name="deliver", queue="orders")
    async def deliver(number: int) -> int:
        return number

    return app, deliver


def is_kept(number: int) -> bool:
    return number % 2 == 0


async def buy(driver: str, url: str, first: int, count: int) -> None:
    app, deliver = app_of(url)
    for number in range(first, first + count):
        with contextlib.suppress(RolledBack):
            async with begun(driver, url) as own:
                await own.run(f"INSERT INTO orders VALUES ({number})")
                await asyncio.sleep(random.uniform(0, PAUSE))
                await deliver.submit(number, connection=own.connection)
                await asyncio.sleep(random.uniform(0, PAUSE))
                if not is_kept(number):
                    raise RolledBack
    await app.close()


def buy_blocking(driver: str, url: str, first: int, count: int) -> None:
    app, deliver = app_of(url)
    q = app.sync()
    for number in range(first, first + count):
        with contextlib.suppress(RolledBack), begun_blocking(driver, url) as own:
            own.run(f"INSERT INTO orders VALUES ({number})")
            time.sleep(random.uniform(0, PAUSE))
            q.submit(deliver, number, connection=own.connection)
            time.sleep(random.uniform(0, PAUSE))
            if not is_kept(number):
                raise RolledBack
    q.run(app.close())


def buy_on_sqlite(url: str, first: int, count: int) -> None:
    app, deliver = app_of(url)
    q = app.sync()
    q.run(app.open())  # a transaction that locks the file would keep the app from opening it
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    for number in range(first, first + count):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO orders VALUES (?)", (number,))
        q.submit(deliver, number, connection=connection)
        time.sleep(random.uniform(0, PAUSE))
        (connection.commit if is_kept(number) else connection.rollback)()
    connection.close()
    q.run(app.close())


if __name__ == "__main__":
    _, chosen, where, begin, many = sys.argv
    if chosen == "sqlite3":
        buy_on_sqlite(where, int(begin), int(many))
    elif chosen in BLOCKING:
        buy_blocking(chosen, where, int(begin), int(many))
    else:
        asyncio.run(buy(chosen, where, int(begin), int(many)))
