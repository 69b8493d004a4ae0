"""Connections to PostgreSQL that the stores of one test after the other use.

A new connection costs PostgreSQL a process, whose first statements read catalogues and are
planned: 80 ms of processor time for a store that does little. So stores of tests get connections
that stores of earlier tests have closed, in the state of new ones. Their prepared statements and
plans stay, as on the connections of a server that runs for long.

A connection belongs to its event loop. So the loop goes on as well: tests use one after the other.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import asyncpg
import pytest

MOST = 6  # connections that are kept for one database and its settings
_RESET = 10.0  # seconds
_connect = asyncpg.connect
Key = tuple[str, str]


class KeptLoop(asyncio.SelectorEventLoop):
    """A loop that stays usable after ``close``, and keeps the idle connections."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: dict[Key, list[Any]] = defaultdict(list)

    def close(self) -> None:
        """Discard the tasks and callbacks that a test left on the loop."""
        state: Any = self
        state._ready.clear()
        state._scheduled.clear()
        state._timer_cancelled_count = 0
        state._asyncgens_shutdown_called = False
        state._executor_shutdown_called = False
        state._default_executor = None
        self.set_exception_handler(None)
        self.set_task_factory(None)
        self.set_debug(False)

    def end(self) -> None:
        """Close the connections and the loop."""
        for connection in self._all_idle():
            connection.end()
        self.idle.clear()
        if not self.is_closed():
            self.run_until_complete(asyncio.sleep(0))  # transports close in the next turn
            super().close()

    def pids(self) -> list[int]:
        """Return the PostgreSQL processes of the idle connections."""
        return [one.get_server_pid() for one in self._all_idle() if not one.is_closed()]

    def _all_idle(self) -> Iterator[Any]:
        for connections in self.idle.values():
            yield from connections


@functools.cache
def _kept(base: type) -> type:
    """A class of connections that are kept when they are closed."""

    class Kept(base):  # type: ignore[misc]  # asyncpg has no types
        given_back = False
        place: list[Any] | None = None

        async def close(self, *, timeout: float | None = None) -> None:
            if not self._give_back():
                await super().close(timeout=timeout)

        def terminate(self) -> None:
            if not self._give_back():
                super().terminate()

        def end(self) -> None:
            super().terminate()

        def _give_back(self) -> bool:
            if self.given_back:
                return True
            if self.place is None or len(self.place) >= MOST or not self._is_quiet():
                return False
            self.given_back = True
            self.place.append(self)
            return True

        def _is_quiet(self) -> bool:
            """Return True if no statement runs or was interrupted, and no transaction is open."""
            return not (
                self.is_closed()
                or self._stmt_exclusive_section._acquired
                or self._protocol._is_cancelling()
                or self.is_in_transaction()
            )

    return Kept


async def connect(dsn: str, **options: Any) -> Any:
    """Return a kept connection or a new one; replaces ``asyncpg.connect``."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, KeptLoop):
        return await _connect(dsn, **options)
    base = options.pop("connection_class", asyncpg.Connection)
    place = loop.idle[dsn, f"{base!r} {sorted(options.items(), key=str)}"]
    while place:
        connection = place.pop()
        try:
            await connection.reset(timeout=_RESET)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            connection.end()  # the server has ended it meanwhile
        except asyncio.CancelledError:
            connection.end()
            raise
        else:
            connection.given_back = False
            return connection
    connection = await _connect(dsn, connection_class=_kept(base), **options)
    connection.place = place
    return connection


class Keeper:
    """The loop of this process, and with it the connections."""

    def __init__(self) -> None:
        self._loop: KeptLoop | None = None

    def loop(self) -> KeptLoop:
        """The loop, for an ``asyncio.Runner``."""
        if self._loop is None:
            self._loop = KeptLoop()
        return self._loop

    def pids(self) -> list[int]:
        return [] if self._loop is None else self._loop.pids()

    def end(self) -> None:
        if self._loop is not None:
            self._loop.end()
            self._loop = None


KEEPER = Keeper()


LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def loop_factories(item: pytest.Item, fixture: str = "places") -> LoopFactories:
    """For ``pytest_asyncio_loop_factories``: the kept loop for tests with the fixture."""
    if fixture in getattr(item, "fixturenames", ()):
        return {"kept": KEEPER.loop}
    return {"own": asyncio.new_event_loop}
