"""Callers and their roles."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass, field


class Role(enum.StrEnum):
    """What somebody is there for. A caller may have several."""

    CLIENT = "client"  # submits jobs, and reads, waits for and cancels them
    WORKER = "worker"  # takes jobs and reports on them
    OPERATOR = "operator"  # looks after queues, workers and dead letters; reads jobs


EVERY_ROLE = frozenset(Role)
_NAMES = ", ".join(Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who made a call, decided once for each call or stream."""

    name: str  # empty when nobody has to say who they are
    roles: frozenset[Role]
    address: str = field(default="", compare=False)

    @property
    def account(self) -> str:
        """What a limit is kept for: the name, or else the address."""
        return f"name {self.name}" if self.name else f"address {self.address}"


def parse_roles(text: str) -> frozenset[Role]:
    """Read ``role+role``; ValueError says what is allowed."""
    try:
        return frozenset(Role(part.strip()) for part in text.split("+"))
    except ValueError:
        raise ValueError(f"unknown role in {text[:60]!r}; allowed: {_NAMES}, joined by +") from None


# Set by a face around each call, for what happens deeper inside of it.
_current: ContextVar[Caller | None] = ContextVar("jobqueue_caller", default=None)
_NOBODY = Caller("", EVERY_ROLE)


def current_caller() -> Caller:
    """The caller of the call that this code runs in."""
    return _current.get() or _NOBODY


def enter_call(caller: Caller) -> None:
    """Make it the caller of the current task, and of the tasks that it starts."""
    _current.set(caller)
