"""Run scripts in Redis in limited time, and send a script again when its answer was lost.

Each write has a number in a sequence of calls (``numbered`` in ``scripts/calls.lua``). A write that
is sent again has the same number. If Redis has run it before, Redis returns the earlier answer, so
each write happens once. Its outcome stays unknown only if no try gets an answer in time.

After a call has timed out, new calls fail at once, until Redis answers a PING.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import msgspec
from redis.exceptions import NoScriptError

from jobqueue.core.clock import Clock
from jobqueue.core.errors import Internal, JobQueueError, OutcomeUnknown, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.core.store import Term, TermEnded
from jobqueue.core.waiting import FairSemaphore
from jobqueue.stores.redis.connections import (
    LOST,
    TROUBLE,
    RedisConnections,
    described,
    passes,
    refused,
    replaced,
    unavailable,
    within,
)
from jobqueue.stores.redis.documents import packed_term

CALL_SEQUENCES = 8
_PAUSE = 0.05  # before a command is sent again
_PING_TIMEOUT = 0.5
_encode = msgspec.msgpack.Encoder().encode

Asked = Sequence[Any]

# The writes that Redis accepts even when its memory is full. So accepted jobs are finished and
# published, a server leads, workers stay alive, and old jobs are removed.
_WHEN_FULL = frozenset({
    "apply", "due", "request_cancel",
    "lead", "resign",
    "begin_stream", "move_mark", "end_stream",
    "delete_job", "prune_done", "remove_schedule",
    "pulse", "retire_silent", "remove_worker", "set_worker_status",
})  # fmt: skip
_HEADING = re.compile(r"^--# (\w+)(?:: (.+))?\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """Holds the text of a script, and its SHA-1 hash, with which ``EVALSHA`` names it."""

    name: str
    text: bytes
    sha: str


@cache
def script(name: str) -> Script:
    """Return the script of the section ``name`` in ``scripts/*.lua``.

    The script begins with the sections that this section needs.
    """
    text = "".join(_with_needs(name, set()))
    if name in _WHEN_FULL:
        text = "#!lua flags=allow-oom\n" + text
    code = text.encode()
    return Script(name, code, hashlib.sha1(code, usedforsecurity=False).hexdigest())


@cache
def _sections() -> Mapping[str, tuple[Sequence[str], str]]:
    """Map the name of each section in ``scripts/*.lua`` to the sections it needs and its text.

    A section begins with the line ``--# name: needed, needed``. All sections need ``common``.
    """
    found: dict[str, tuple[Sequence[str], str]] = {}
    for file in resources.files(__package__).joinpath("scripts").iterdir():
        _, *parts = _HEADING.split(file.read_text())
        for name, needs, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            assert name not in found, f"two sections are called {name}"
            found[name] = (needs.split(", ") if needs else (), text)
    return found


def _with_needs(name: str, there: set[str]) -> list[str]:
    """Return the text of a section, after the texts of all sections that it needs.

    ``there`` names the sections whose texts the script has already; these are left out.
    """
    there.add(name)
    needs, text = _sections()[name]
    before = (_with_needs(one, there) for one in ("common", *needs) if one not in there)
    return [*itertools.chain.from_iterable(before), text]


@dataclass(slots=True)
class _CallSequence:
    """Numbers writes of this process that run one after the other.

    ``call`` is the number of the latest write.
    """

    name: str
    call: int = 0


class ScriptRunner:
    """Runs the scripts and commands of one Redis store."""

    def __init__(
        self,
        connections: RedisConnections,
        prefix: str,
        clock: Clock | None,
        observer: Observer,
        patience: float,
    ) -> None:
        self.prefix = prefix
        self.node = secrets.token_hex(8)
        self.location = f"Redis at {connections.address}"
        self._connections = connections
        self._clock = clock
        self._observer = observer
        self._patience = patience
        self._places = FairSemaphore(CALL_SEQUENCES)
        self._free = [_CallSequence(f"{self.node}:{n}") for n in range(CALL_SEQUENCES)]
        self.opened = False
        self._away: BaseException | None = None  # the error of the last call, if it timed out
        self._pinging: asyncio.Event | None = None

    @property
    def by_clock(self) -> bool:
        """Return True if a test's clock is used instead of the time of the Redis server."""
        return self._clock is not None

    def here(self) -> float:
        """Return the time of this machine or of a test's clock, not that of the Redis server."""
        return time.time() if self._clock is None else self._clock.now()

    async def read(self, name: str, asked: Asked = ()) -> Any:
        """Run a script that is safe to repeat, and return its answer."""
        return await self._measured(name, self.arguments(name, asked, "", 0), in_doubt=False)

    async def write(self, name: str, asked: Asked) -> Any:
        """Run a script that must take effect exactly once, and return its answer."""
        self._check_open()
        if self._away is not None:
            await self._check_back()
        async with self._places:
            sequence = self._free.pop()
            try:
                sequence.call += 1
                arguments = self.arguments(name, asked, sequence.name, sequence.call)
                return await self._measured(name, arguments, in_doubt=True)
            finally:
                self._free.append(sequence)

    async def write_under(self, term: Term, name: str, *asked: Any) -> Any:
        """Run a script like ``write``, fenced by a term. Raise TermEnded if the term is over."""
        said = await self.write(name, (packed_term(term), *asked))
        if said is None:
            raise TermEnded
        return said

    async def command(
        self, name: str, *command: str | int | bytes, patience: float | None = None
    ) -> Any:
        """Run a Redis command that is safe to repeat, and return its answer.

        ``name`` is its name in metrics. ``patience`` limits the seconds of waiting and retries.
        """
        return await self._measured(name, command, in_doubt=False, patience=patience)

    def arguments(self, name: str, asked: Asked, sequence: str, call: int) -> tuple[Any, ...]:
        """Return the script ``name`` and its arguments as ``scripts/calls.lua`` reads them."""
        found = script(name)
        now = "" if self._clock is None else repr(self._clock.now())
        return (found, 1, self.prefix, now, self.node, sequence, call, _encode(asked))

    def _check_open(self) -> None:
        if not self.opened:
            raise Unavailable(f"{self.location}: the store is not open")

    async def _measured(
        self,
        name: str,
        command: tuple[Any, ...],
        *,
        in_doubt: bool,
        patience: float | None = None,
    ) -> Any:
        self._check_open()
        if self._away is not None and patience is None:
            await self._check_back()
        began = time.perf_counter()
        try:
            return await self._run(
                command, in_doubt, self._patience if patience is None else patience
            )
        finally:
            self._observer.queried(name, time.perf_counter() - began)

    async def _check_back(self) -> None:
        """Send a PING and raise StoreAway if Redis does not answer.

        Callers at the same time share one PING.
        """
        if self._pinging is not None:
            await self._pinging.wait()
        else:
            self._pinging = asked = asyncio.Event()
            try:
                await within(_PING_TIMEOUT, self._connections.execute("PING"))
                self._away = None
            except TROUBLE as error:
                if isinstance(error, LOST):
                    self._away = error
                    await self._connections.drop()
                else:  # Redis answers, so the call itself may be sent
                    self._away = None
            finally:
                self._pinging = None
                asked.set()
        if self._away is not None:
            raise unavailable(self._away, self.location)

    async def _run(self, command: tuple[Any, ...], in_doubt: bool, patience: float) -> Any:
        deadline = time.monotonic() + patience
        where = self.location
        doubt: BaseException | None = None
        while True:
            sent = asyncio.Event()
            try:
                # The store's patience counts, not that of the call: a server that is too slow for
                # one caller is not unavailable.
                said = await within(self._patience / 2, self._ask(command, sent.set))
                self._away = None
                return said
            except TROUBLE as error:
                if passes(error):
                    trouble: BaseException = error
                elif refused(error):
                    if replaced(error):
                        await self._connections.drop()
                    raise _verdict(doubt, error, where) from error
                elif not isinstance(error, LOST):
                    raise Internal(described(error, where)) from error
                else:
                    trouble = error
                    if in_doubt and sent.is_set():
                        doubt = error
                    await self._connections.drop()  # the host may name another server by now
                if time.monotonic() >= deadline:
                    self._away = trouble
                    raise _verdict(doubt, trouble, where) from trouble
            await asyncio.sleep(_PAUSE)

    async def _ask(self, command: tuple[Any, ...], note: Callable[[], None]) -> Any:
        found, *rest = command
        if not isinstance(found, Script):
            return await self._connections.execute(*command, note=note)
        try:
            return await self._connections.execute("EVALSHA", found.sha, *rest, note=note)
        except NoScriptError:  # Redis was restarted, or its scripts were flushed; EVAL loads it
            return await self._connections.execute("EVAL", found.text, *rest, note=note)


def _verdict(doubt: BaseException | None, error: BaseException, where: str) -> JobQueueError:
    if doubt is None:
        return unavailable(error, where)
    return OutcomeUnknown(described(doubt, f"{where}: the connection was lost during a write"))
