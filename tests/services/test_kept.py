"""tests/services/kept.py: connections that one test after the other uses are as good as new."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import asyncpg
import pytest

from tests.services import kept
from tests.services.kept import KeptLoop


@pytest.fixture
def loop() -> Iterator[KeptLoop]:
    made = KeptLoop()
    yield made
    made.end()


def run(loop: KeptLoop, test: Coroutine[Any, Any, Any]) -> Any:
    """As pytest runs one test: on a loop that it closes."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(test)


async def pid_after(dsn: str, *statements: str, **options: Any) -> int:
    """The process behind a connection, on which the statements are run before it is closed."""
    connection = await kept.connect(dsn, **options)
    pid: int = connection.get_server_pid()
    for statement in statements:
        await connection.execute(statement)
    await connection.close()
    return pid


def test_the_next_test_gets_the_connection_in_the_state_of_a_new_one(loop, postgres_dsn):
    first = run(
        loop, pid_after(postgres_dsn, "SET jit = off", "LISTEN a", "SELECT pg_advisory_lock(7)")
    )

    async def look() -> None:
        connection = await kept.connect(postgres_dsn)
        assert connection.get_server_pid() == first
        assert await connection.fetchval("SHOW jit") == "on"
        assert await connection.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
        assert (
            await connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            == 0
        )
        await connection.close()

    run(loop, look())
    assert loop.pids() == [first]


def test_other_settings_get_a_connection_of_their_own(loop, postgres_dsn):
    first = run(loop, pid_after(postgres_dsn))
    assert run(loop, pid_after(postgres_dsn, server_settings={"jit": "off"})) != first


def test_a_connection_in_a_transaction_is_closed(loop, postgres_dsn):
    run(loop, pid_after(postgres_dsn, "BEGIN"))
    assert loop.pids() == []


def test_a_connection_that_was_cut_off_in_a_statement_is_closed(loop, postgres_dsn):
    async def cut_off() -> None:
        connection = await kept.connect(postgres_dsn)
        waits = asyncio.create_task(connection.fetchval("SELECT pg_sleep(60)"))
        while not connection._stmt_exclusive_section._acquired:
            await asyncio.sleep(0)
        connection.terminate()
        with pytest.raises(asyncpg.PostgresConnectionError):
            await waits

    run(loop, cut_off())
    assert loop.pids() == []


def test_a_connection_that_the_server_has_ended_is_replaced(loop, postgres_dsn):
    first = run(loop, pid_after(postgres_dsn))

    async def end_it() -> None:
        other = await asyncpg.connect(postgres_dsn)
        while await other.fetchval(
            "SELECT count(pg_terminate_backend($1)) FROM pg_stat_activity WHERE pid = $1", first
        ):
            await asyncio.sleep(0)
        await other.close()

    asyncio.run(end_it())
    assert run(loop, pid_after(postgres_dsn)) != first


def test_what_a_test_has_left_on_the_loop_is_forgotten(loop):
    called: list[str] = []

    async def leave() -> None:
        running = asyncio.get_running_loop()
        running.call_later(0, called.append, "later")
        running.set_exception_handler(lambda *_: called.append("failed"))
        await asyncio.to_thread(called.append, "in a thread")
        running.call_soon(called.append, "soon")

    run(loop, leave())
    called.clear()
    run(loop, asyncio.sleep(0.001))
    assert called == []
    assert loop.get_exception_handler() is None
    run(loop, asyncio.to_thread(called.append, "in another thread"))
    assert called == ["in another thread"]
