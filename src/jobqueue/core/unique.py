"""Decide whether a job may be submitted beside an equal one: the rules of unique jobs.

A store keeps, for each queue and unique key, the latest job that was accepted with the key: its
*holder*. Nothing happens to a key when its holder moves on. The next submit with the key looks at
the holder's state and decides by these rules. A key is free again when its holder is removed.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.ids import stored_key
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.texts import MAX_KEY_LENGTH, check_text

WAITING, UNFINISHED = "waiting", "unfinished"
SCOPES = (WAITING, UNFINISHED)
EXISTING, REJECT, REPLACE = "existing", "reject", "replace"
CONFLICTS = (EXISTING, REJECT, REPLACE)
# An ASSIGNED job does not count: it may be running already, because its worker reports the start
# together with other reports.
WAITS = frozenset({State.PENDING, State.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """What a submitter said about the uniqueness of a job.

    An earlier job with the key is in the way while it is WAITING or UNFINISHED (``scope``), or for
    ``period`` seconds after its submit. ``on_conflict`` says what happens then: the earlier job is
    returned, the submit is refused, or the new job takes the earlier one's place.
    """

    key: str
    scope: str = UNFINISHED
    period: float | None = None  # in place of the scope
    on_conflict: str = EXISTING
    owner: str = ""  # a caller's name; empty: all callers share the key

    @property
    def stored(self) -> str:
        """Return the key as stores keep it, with its owner."""
        return stored_key(self.owner, self.key)

    def check(self) -> None:
        """Raise InvalidArgument unless the values are known and fit together."""
        check_text("unique.key", self.key, MAX_KEY_LENGTH)
        _check_word("unique.scope", self.scope, SCOPES)
        _check_word("unique.on_conflict", self.on_conflict, CONFLICTS)
        if self.period is not None and not 0 < self.period <= MAX_SECONDS:  # NaN is refused, too
            raise InvalidArgument(
                "unique.period", f"must be more than 0 and at most {MAX_SECONDS:.0f} seconds"
            )
        if self.on_conflict == REPLACE and (self.scope != WAITING or self.period is not None):
            raise InvalidArgument(
                "unique.on_conflict",
                f"{REPLACE!r} needs the scope {WAITING!r} and no period: only a waiting job can be"
                " replaced",
            )

    def document(self) -> dict[str, object]:
        """Return the values for people and programs, without the owner."""
        return {
            "key": self.key,
            "scope": self.scope,
            "period": self.period,
            "on_conflict": self.on_conflict,
        }

    def __str__(self) -> str:
        how = self.scope if self.period is None else f"{self.period:g} s"
        return f"{self.key} ({how}, {self.on_conflict})"

    def as_list(self) -> list[object]:
        """Return the values as stores keep them, in JSON."""
        return [self.key, self.scope, self.period, self.on_conflict, self.owner]


def read_unique(values: list[object] | tuple[object, ...]) -> UniqueKey:
    """Return a unique key from what ``as_list`` returned for it."""
    key, scope, period, on_conflict, owner = values
    return UniqueKey(
        key=str(key),
        scope=str(scope),
        period=None if period is None else float(str(period)),
        on_conflict=str(on_conflict),
        owner=str(owner),
    )


def _check_word(field: str, word: str, allowed: tuple[str, ...]) -> None:
    if word not in allowed:
        raise InvalidArgument(field, f"{word[:80]!r} is unknown; allowed: {', '.join(allowed)}")


@dataclass(frozen=True, slots=True)
class Holder:
    """The job that was accepted last with a unique key."""

    job_id: str
    seq: int
    created_at: float
    state: State


def in_the_way(unique: UniqueKey, holder: Holder, now: float) -> bool:
    """Return True if the holder of the key keeps a new job from being accepted beside it."""
    if unique.period is not None:
        return now < holder.created_at + unique.period
    if unique.scope == WAITING:
        return holder.state in WAITS
    return holder.state not in TERMINAL


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A unique key and its holder, as a replay restores them."""

    queue: str
    key: str  # as stores keep it
    job_id: str
    seq: int
