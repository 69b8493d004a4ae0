"""How much may be under way at a time, for each caller and in all: calls, and their bytes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from jobqueue.access.rules import Kind
from jobqueue.core.errors import Unavailable

log = logging.getLogger("jobqueue.access")


@dataclass(frozen=True, slots=True)
class Budget:
    """The most of one kind."""

    in_all: int
    per_caller: int


_WORDS = {
    Kind.PROBE: "probes",
    Kind.CALL: "calls",
    Kind.WAIT: "waits",
    Kind.STREAM: "streams",
    Kind.SUBMIT_STREAM: "submit streams",
    Kind.WATCH: "watches",
}
# Room for a fleet of two thousand workers with one key, and for an app that waits for many jobs.
DEFAULTS: Mapping[Kind, Budget] = {
    Kind.PROBE: Budget(1_000, 100),  # no setting: a probe is answered at once
    Kind.CALL: Budget(4_000, 2_000),
    Kind.WAIT: Budget(40_000, 20_000),
    Kind.STREAM: Budget(8_000, 4_000),
    Kind.SUBMIT_STREAM: Budget(128, 32),  # who gets none submits by calls
    Kind.WATCH: Budget(1_000, 100),  # no setting: an orchestrator has a few
}


# The last part of what there is in all is for callers who have little: a few hungry ones must not
# keep out the workers and the operators.
_LAST_PART = 4
# Messages of the largest size that one caller may have in memory, and how many such callers.
_MESSAGES_PER_CALLER = 16
_HUNGRY_CALLERS = 4


class Budgets:
    """Shared by the faces of a server."""

    def __init__(self, budgets: Mapping[Kind, Budget] | None = None) -> None:
        """``budgets`` replace the defaults of their kinds."""
        self._counts = {
            kind: Count(_WORDS[kind], budget)
            for kind, budget in {**DEFAULTS, **(budgets or {})}.items()
        }

    def of(self, kind: Kind) -> Count:
        """What is under way of one kind."""
        return self._counts[kind]

    def enter(self, kind: Kind, account: str) -> Place:
        """Count a call until it leaves its place; Unavailable if there is none.

        ``account`` is the caller's; without one only the budget in all counts.
        """
        self._counts[kind].enter(account)
        return Place(self, kind, account)

    def under_way(self, kind: Kind, account: str | None = None) -> int:
        """How many there are, of one caller or in all."""
        count = self._counts[kind]
        return count.total if account is None else count.of.get(account, 0)

    def _move(self, place: Place, kind: Kind) -> None:
        self._counts[kind].enter(place.account)
        self._counts[place.kind].leave(place.account)

    def _leave(self, place: Place) -> None:
        self._counts[place.kind].leave(place.account)


class Place:
    """One call under way. To leave it twice is no error."""

    __slots__ = ("_budgets", "account", "kind")

    def __init__(self, budgets: Budgets, kind: Kind, account: str) -> None:
        self._budgets: Budgets | None = budgets
        self.kind = kind
        self.account = account

    def move(self, kind: Kind) -> None:
        """Count it as another kind from now on: a request that turns out to be a stream."""
        if self._budgets is not None and kind is not self.kind:
            self._budgets._move(self, kind)
            self.kind = kind

    def leave(self, *_: object) -> None:
        """The call has ended."""
        budgets, self._budgets = self._budgets, None
        if budgets is not None:
            budgets._leave(self)


class MessageBytes:
    """Bytes of messages in memory: of requests until their answers, or of answers until they left.

    A caller who has none gets room for a message even if there is none left, until all together
    have twice their room: who has many names or addresses has no more. Others wait, each caller in
    its own line.
    """

    def __init__(self, largest: int, *, per_caller: int = _MESSAGES_PER_CALLER) -> None:
        """``largest``: what is taken for a message whose size is not known yet."""
        self.largest = largest
        self._budget = Budget(_HUNGRY_CALLERS * per_caller * largest, per_caller * largest)
        self._count = Count("bytes", self._budget)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def wanted(self) -> bool:
        """Whether callers wait for room."""
        return bool(self._waiting)

    @property
    def scarce(self) -> bool:
        """Whether callers wait for what others have."""
        return self.wanted and self._count.scarce(self.largest)

    def has_room(self, account: str) -> bool:
        """Whether a caller, of whose messages none waits, may have another."""
        return account not in self._waiting and self._room(account)

    def take(self, account: str) -> bool:
        """Take room for a message; False if there is none."""
        if not self.has_room(account):
            return False
        self._count.add(account, self.largest)
        return True

    async def wait(self, account: str) -> None:
        """Take room for a message when there is some."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(account, deque())
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.change(account, self.largest, 0)
            elif turn in line:
                line.remove(turn)
                if not line:
                    del self._waiting[account]
            raise

    def change(self, account: str, before: int, now: int) -> int:
        """What was taken takes more, or less, or nothing any more; returns what it takes now."""
        if now > before:
            self._count.add(account, now - before)
        else:
            self._count.remove(account, before - now)
            if self._waiting:
                self._let_in()
        return now

    def check(self, account: str, before: int, now: int) -> None:
        """Unavailable if a change would give a caller far more than it may have."""
        others = self._held(account) - before
        most = self._budget.per_caller if account else self._budget.in_all
        if others and others + now > 2 * most:
            raise Unavailable(
                f"{account or 'the server'} has {others} bytes of messages under way already; read"
                " the answers, then try again"
            )

    def _held(self, account: str) -> int:
        return self._count.of.get(account, 0) if account else self._count.total

    def _room(self, account: str) -> bool:
        if not self._count.lacking(account, self.largest):
            return True
        return not self._held(account) and self._count.total < 2 * self._budget.in_all

    def _let_in(self) -> None:
        while self._waiting:
            account = next((one for one in self._waiting if self._room(one)), None)
            if account is None:
                return
            line = self._waiting.pop(account)
            turn = line.popleft()
            if line:
                self._waiting[account] = line  # behind the other callers
            if not turn.done():  # else its call was cancelled
                self._count.add(account, self.largest)
                turn.set_result(None)


class Room:
    """What the answer to one call takes. To close it twice is no error."""

    __slots__ = ("_account", "_bytes", "_closed", "taken")

    def __init__(self, bytes: MessageBytes, account: str) -> None:
        self._bytes = bytes
        self._account = account
        self._closed = False
        self.taken = 0

    async def take(self) -> None:
        """Wait until the largest answer has room, and hold that; at once if any is held."""
        if self.taken or self._closed:
            return
        if not self._bytes.take(self._account):
            await self._bytes.wait(self._account)
        self.taken = self._bytes.largest
        self._unless_closed()

    def change(self, amount: int) -> None:
        """Hold this much from now on."""
        if amount != self.taken and (not self._closed or not amount):
            self.taken = self._bytes.change(self._account, self.taken, amount)

    def give_back(self) -> None:
        """Hold nothing any more."""
        self.change(0)

    def close(self) -> None:
        """The call has ended: nothing is held, and nothing will be."""
        self._closed = True
        self._unless_closed()

    def _unless_closed(self) -> None:
        if self._closed:
            self.change(0)


class Count:
    """How much there is of something, for each caller and in all."""

    def __init__(self, what: str, budget: Budget) -> None:
        self._what = what
        self._budget = budget
        self._last_part = budget.in_all // _LAST_PART
        self._refusing: set[str] = set()  # accounts whose refusal was logged
        self.total = 0
        self.of: dict[str, int] = {}

    def enter(self, account: str) -> None:
        """Count one more; Unavailable if there is no room for it."""
        why = self.lacking(account, 1)
        if why:
            raise self._refused("" if self.total >= self._budget.in_all else account, why)
        self.add(account, 1)

    def leave(self, account: str) -> None:
        """One of them has ended."""
        self.remove(account, 1)

    def lacking(self, account: str, amount: int) -> str:
        """Why there is no room for this much; empty if there is."""
        free = self._budget.in_all - self.total
        if amount > free:
            return f"the server has {self.total} {self._what} under way already; try again"
        if account:
            held = self.of.get(account, 0)
            if held + amount > self._budget.per_caller:
                return (
                    f"{account} has {held} {self._what} under way already, the most that one caller"
                    " may have; try again when one has ended"
                )
            if held + amount > free and self.scarce(amount):
                return (
                    f"the server has {self.total} {self._what} under way already, and what is left"
                    f" is for callers who have fewer than {account}; try again"
                )
        return ""

    def scarce(self, amount: int) -> bool:
        """Whether this much more would be of the last part."""
        return self.total + amount > self._budget.in_all - self._last_part

    def add(self, account: str, amount: int) -> None:
        """Count more, whether there is room or not."""
        self.total += amount
        if account:
            self.of[account] = self.of.get(account, 0) + amount

    def remove(self, account: str, amount: int) -> None:
        """Count less."""
        self.total -= amount
        if account:
            held = self.of.pop(account) - amount
            if held:
                self.of[account] = held
        if self._refusing:
            if not self.of.get(account, 0):
                self._refusing.discard(account)
            if self.total * 2 < self._budget.in_all:
                self._refusing.discard("")

    def _refused(self, account: str, why: str) -> Unavailable:
        """The first refusal is logged; the next one after the caller had nothing under way."""
        if account not in self._refusing:
            self._refusing.add(account)
            log.warning("%s are refused: %s", self._what, why)
        return Unavailable(why)
