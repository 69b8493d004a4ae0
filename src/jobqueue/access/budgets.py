"""How many calls, waits and streams may be under way at a time: for each caller, and in all."""

from __future__ import annotations

import logging
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
    Kind.WATCH: "watches",
}
# Room for a fleet of two thousand workers with one key, and for an app that waits for many jobs.
DEFAULTS: Mapping[Kind, Budget] = {
    Kind.PROBE: Budget(1_000, 100),  # no setting: a probe is answered at once
    Kind.CALL: Budget(4_000, 2_000),
    Kind.WAIT: Budget(40_000, 20_000),
    Kind.STREAM: Budget(8_000, 4_000),
    Kind.WATCH: Budget(1_000, 100),  # no setting: an orchestrator has a few
}


class Budgets:
    """Shared by the faces of a server."""

    def __init__(self, budgets: Mapping[Kind, Budget] | None = None) -> None:
        """``budgets`` replace the defaults of their kinds."""
        self._counts = {
            kind: _Count(kind, budget) for kind, budget in {**DEFAULTS, **(budgets or {})}.items()
        }

    def enter(self, kind: Kind, account: str) -> Place:
        """Count a call until it leaves its place; Unavailable if there is none.

        ``account`` is the caller's; without one only the budget in all counts.
        """
        self._counts[kind].add(account)
        return Place(self, kind, account)

    def under_way(self, kind: Kind, account: str | None = None) -> int:
        """How many there are, of one caller or in all."""
        count = self._counts[kind]
        return count.total if account is None else count.of.get(account, 0)

    def _move(self, place: Place, kind: Kind) -> None:
        self._counts[kind].add(place.account)
        self._counts[place.kind].remove(place.account)

    def _leave(self, place: Place) -> None:
        self._counts[place.kind].remove(place.account)


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


class _Count:
    def __init__(self, kind: Kind, budget: Budget) -> None:
        self._what = _WORDS[kind]
        self._budget = budget
        self._refusing: set[str] = set()  # accounts whose refusal was logged
        self.total = 0
        self.of: dict[str, int] = {}

    def add(self, account: str) -> None:
        budget = self._budget
        if self.total >= budget.in_all:
            raise self._refused(
                "", f"the server has {budget.in_all} {self._what} under way already; try again"
            )
        if account:
            held = self.of.get(account, 0)
            if held >= budget.per_caller:
                raise self._refused(
                    account,
                    f"{account} has {held} {self._what} under way already, the most that one caller"
                    " may have; try again when one has ended",
                )
            self.of[account] = held + 1
        self.total += 1

    def remove(self, account: str) -> None:
        self.total -= 1
        if account:
            held = self.of.pop(account) - 1
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
