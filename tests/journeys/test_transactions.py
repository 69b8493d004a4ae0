"""A program that keeps its data and its jobs in one database, with a newcomer's mistakes."""

from __future__ import annotations

import pytest

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks

SHOP, _, _, LITE, CHARGE = blocks("docs/transactions.md", "python")


@pytest.mark.integration
def test_a_shop_on_postgresql(machine: Machine, empty_postgres_dsn: str) -> None:
    """The database is empty at first: the app creates the schema."""
    machine.write("shop.py", SHOP)
    dsn = empty_postgres_dsn
    assert machine.succeed("python", "shop.py", SHOP_DB=dsn) == "sent 'welcome' to a@b.c\n"
    assert machine.succeed("python", "shop.py", SHOP_DB=dsn) == "sent 'welcome' to a@b.c\n"

    machine.write("charge.py", CHARGE)
    assert machine.succeed("python", "charge.py", SHOP_DB=dsn) == "charged a@b.c\n"

    machine.write("forgot.py", SHOP.replace("async with db.transaction():", "if True:"))
    forgot = machine.run("python", "forgot.py", SHOP_DB=dsn)
    assert forgot.returncode != 0
    assert (
        "connection: is not in a transaction, so the call would take effect at once: begin a"
        " transaction first, as `async with connection.transaction():`" in forgot.stderr
    )

    pooled = SHOP.replace("connection=db)", "connection=URL)")
    machine.write("wrong.py", pooled)
    wrong = machine.run("python", "wrong.py", SHOP_DB=dsn)
    assert "connection: builtins.str is not supported; allowed: a connection of" in wrong.stderr

    elsewhere = SHOP.replace("app = JobQueue(URL)", 'app = JobQueue("memory://")')
    machine.write("elsewhere.py", elsewhere)
    memory = machine.run("python", "elsewhere.py", SHOP_DB=dsn)
    assert "a memory:// app keeps its jobs outside every database" in memory.stderr


def test_a_shop_on_sqlite(machine: Machine) -> None:
    machine.write("shop.py", LITE)
    for _ in range(2):
        assert machine.succeed("python", "shop.py") == "sent 'welcome' to a@b.c\n"
    machine.write("other.py", LITE.replace('connect("shop.db")', 'connect("mine.db")'))
    other = machine.run("python", "other.py")
    assert "mine.db, and the app's jobs are in shop.db: connect to that file" in other.stderr
