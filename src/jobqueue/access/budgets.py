"""Limit the calls that run at once and their bytes in memory, per caller and for the server."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from jobqueue.access.rules import BudgetKind
from jobqueue.core.errors import Unavailable

log = logging.getLogger("jobqueue.access")

# The account of a connection begins with this. A server without authentication counts calls by
# connection. One connection may use the limit of the whole server: most such servers have one app.
CONNECTION = "connection "


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits the calls of one kind that run at once, for the server and for each caller."""

    in_all: int
    per_caller: int

    def most(self, account: str) -> int:
        return self.in_all if account.startswith(CONNECTION) else self.per_caller


# The defaults allow two thousand workers with one key, and an app that waits for many jobs.
DEFAULTS: Mapping[BudgetKind, Budget] = {
    BudgetKind.PROBE: Budget(1_000, 100),  # no setting: a probe is answered at once
    BudgetKind.CALL: Budget(4_000, 2_000),
    BudgetKind.WAIT: Budget(40_000, 20_000),
    BudgetKind.STREAM: Budget(8_000, 4_000),
    BudgetKind.SUBMIT_STREAM: Budget(128, 32),  # a client without a stream submits by calls
    # No setting: a page of the console that gets no stream looks for news by itself.
    BudgetKind.PAGE: Budget(1_000, 200),
    BudgetKind.WATCH: Budget(1_000, 100),  # no setting: an orchestrator needs a few
}
# The last quarter of each budget is for callers with few calls: a few callers with many calls must
# not lock out the workers and the operators.
_LAST_PART = 4
# A caller may have this many messages of the largest size in memory, and the server may have this
# many such callers.
_MESSAGES_PER_CALLER = 16
_FULL_CALLERS = 4


class Budgets:
    """Counts the calls under way on a server, by kind, and refuses calls above the limits."""

    def __init__(self, budgets: Mapping[BudgetKind, Budget] | None = None) -> None:
        """Set the limits: ``budgets`` replaces the default limits of the kinds that it contains."""
        self._counts = {
            kind: Count(_plural(kind), budget)
            for kind, budget in {**DEFAULTS, **(budgets or {})}.items()
        }

    def of(self, kind: BudgetKind) -> Count:
        return self._counts[kind]

    def enter(self, kind: BudgetKind, account: str) -> Place:
        """Count a call until ``leave`` of the returned place is called.

        Raise Unavailable if the limit of the caller or of the server is reached. ``account`` names
        the caller. If ``account`` is empty, only the server's limit applies.
        """
        self._counts[kind].enter(account)
        return Place(self._counts, kind, account)

    def under_way(self, kind: BudgetKind, account: str | None = None) -> int:
        count = self._counts[kind]
        return count.total if account is None else count.of.get(account, 0)


def _plural(kind: BudgetKind) -> str:
    return f"{kind.value}es" if kind is BudgetKind.WATCH else f"{kind.value}s"


class Place:
    """Represents one call under way that a budget counts. ``leave`` may be called twice."""

    __slots__ = ("_counts", "account", "kind")

    def __init__(self, counts: Mapping[BudgetKind, Count], kind: BudgetKind, account: str) -> None:
        self._counts: Mapping[BudgetKind, Count] | None = counts
        self.kind = kind
        self.account = account

    def move(self, kind: BudgetKind) -> None:
        """Count the call as another kind from now on, as when a request becomes a stream."""
        if self._counts is not None and kind is not self.kind:
            self._counts[kind].enter(self.account)
            self._counts[self.kind].leave(self.account)
            self.kind = kind

    def leave(self, *_: object) -> None:
        counts, self._counts = self._counts, None
        if counts is not None:
            counts[self.kind].leave(self.account)


class MessageBytes:
    """Counts and limits the bytes of messages in memory, per caller and for the server.

    A request counts until the server has answered it. An answer counts until it is sent. A caller
    without a message in memory may exceed the server's limit with one message, while all callers
    together use less than twice the limit. Without this second limit, a caller with many names or
    addresses could use all memory. Other messages wait, in one line per caller.
    """

    def __init__(self, largest: int, *, per_caller: int = _MESSAGES_PER_CALLER) -> None:
        """Set the limits.

        ``largest`` is the number of bytes counted for a message of unknown size.
        """
        self.largest = largest
        self._budget = Budget(_FULL_CALLERS * per_caller * largest, per_caller * largest)
        self._count = Count("bytes", self._budget)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def wanted(self) -> bool:
        return bool(self._waiting)

    @property
    def scarce(self) -> bool:
        """Return True if callers wait and the next message would use the limit's last quarter."""
        return self.wanted and self._count.scarce(self.largest)

    def has_room(self, account: str) -> bool:
        """Return True if the caller may have one more message in memory without waiting."""
        return account not in self._waiting and self._room(account, self.largest)

    def take(self, account: str, amount: int | None = None) -> bool:
        """Count ``amount`` bytes (default: ``largest``); return False if a limit forbids it."""
        amount = self.largest if amount is None else amount
        if account in self._waiting or not self._room(account, amount):
            return False
        self._count.add(account, amount)
        return True

    async def wait(self, account: str) -> None:
        """Wait until the limits allow one more message of the largest size, and count its bytes."""
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
        """Change the counted bytes of a message from ``before`` to ``now``; return ``now``."""
        if now > before:
            self._count.add(account, now - before)
        else:
            self._count.remove(account, before - now)
            if self._waiting:
                self._let_in()
        return now

    def check(self, account: str, before: int, now: int) -> None:
        """Raise Unavailable if the caller would exceed twice its limit.

        The caller's message counts as ``before`` bytes and would count as ``now`` bytes. A caller's
        only message is never refused.
        """
        others = self._held(account) - before
        most = self._budget.most(account) if account else self._budget.in_all
        if others and others + now > 2 * most:
            raise Unavailable(
                f"{account or 'the server'} has {others} bytes of messages under way already; read"
                " the answers of earlier calls, then try again"
            )

    def _held(self, account: str) -> int:
        return self._count.of.get(account, 0) if account else self._count.total

    def _room(self, account: str, amount: int) -> bool:
        if not self._count.lacking(account, amount):
            return True
        return not self._held(account) and self._count.total < 2 * self._budget.in_all

    def _let_in(self) -> None:
        while self._waiting:
            account = next((one for one in self._waiting if self._room(one, self.largest)), None)
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
    """Implements ``core.waiting.AnswerRoom`` for one call. ``close`` may be called twice."""

    __slots__ = ("_account", "_bytes", "_closed", "taken")

    def __init__(self, bytes: MessageBytes, account: str) -> None:
        self._bytes = bytes
        self._account = account
        self._closed = False
        self.taken = 0

    async def take(self) -> None:
        if self.taken or self._closed:
            return
        if not self._bytes.take(self._account):
            await self._bytes.wait(self._account)
        self.taken = self._bytes.largest
        self._unless_closed()

    async def until_room(self) -> None:
        if not self._bytes.take(self._account):
            await self._bytes.wait(self._account)
        self._bytes.change(self._account, self._bytes.largest, 0)

    def add(self, amount: int) -> bool:
        if self._closed or not self._bytes.take(self._account, amount):
            return False
        self.taken += amount
        return True

    def change(self, amount: int) -> None:
        if amount != self.taken and (not self._closed or not amount):
            self.taken = self._bytes.change(self._account, self.taken, amount)

    def give_back(self) -> None:
        self.change(0)

    def close(self) -> None:
        """Release all counted bytes and count none from now on, because the call has ended."""
        self._closed = True
        self._unless_closed()

    def _unless_closed(self) -> None:
        if self._closed:
            self.change(0)


class Count:
    """Counts calls or bytes, per caller and for the server, and compares them with the limits."""

    def __init__(self, noun: str, budget: Budget) -> None:
        self._noun = noun  # in errors
        self._budget = budget
        self._last_part = budget.in_all // _LAST_PART
        # Accounts whose refusal is logged already; "" means that the server's limit was reached.
        self._refusing: set[str] = set()
        self.total = 0
        self.of: dict[str, int] = {}

    def enter(self, account: str) -> None:
        """Count one more call of the caller; raise Unavailable if a limit is reached."""
        why = self.lacking(account, 1)
        if why:
            raise self._refused("" if self.total >= self._budget.in_all else account, why)
        self.add(account, 1)

    def leave(self, account: str) -> None:
        self.remove(account, 1)

    def lacking(self, account: str, amount: int) -> str:
        """Return an error text about the limit that ``amount`` more would exceed; empty if none."""
        free = self._budget.in_all - self.total
        if amount > free:
            return f"the server has {self.total} {self._noun} under way already; try again"
        if account:
            held = self.of.get(account, 0)
            if held + amount > self._budget.most(account):
                return (
                    f"{account} has {held} {self._noun} under way already, the most that one caller"
                    " may have; try again when one has ended"
                )
            if held + amount > free and self.scarce(amount):
                return (
                    f"the server has {self.total} {self._noun} under way already, and the rest"
                    f" is for callers who have fewer {self._noun} than {account}; try again"
                )
        return ""

    def scarce(self, amount: int) -> bool:
        """Return True if ``amount`` more would use the last quarter of the budget."""
        return self.total + amount > self._budget.in_all - self._last_part

    def add(self, account: str, amount: int) -> None:
        """Add ``amount`` to the counts of the caller and of the server, without checking limits."""
        self.total += amount
        if account:
            self.of[account] = self.of.get(account, 0) + amount

    def remove(self, account: str, amount: int) -> None:
        """Subtract ``amount`` from the counts of the caller and of the server."""
        self.total -= amount
        if account:
            held = self.of.pop(account) - amount
            if held:
                self.of[account] = held
        if self._refusing:  # log the account's next refusal after all of its calls have ended
            if not self.of.get(account, 0):
                self._refusing.discard(account)
            if self.total * 2 < self._budget.in_all:
                self._refusing.discard("")

    def _refused(self, account: str, why: str) -> Unavailable:
        """Return the error ``why``; log it unless a refusal of the account is logged already."""
        if account not in self._refusing:
            self._refusing.add(account)
            log.warning("refusing further %s of %s: %s", self._noun, account or "any caller", why)
        return Unavailable(why)
