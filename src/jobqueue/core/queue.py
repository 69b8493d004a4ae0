"""Queues: their settings, declared once, and what operators ask for.

``SETTINGS`` says of each setting what kind of value it is, its limits and its words. Stores, wire
formats, answers and ``jq-ctl`` go by it: none of them lists the settings again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import State
from jobqueue.core.retry import RetryPolicy, check_retry, policy_of

DEFAULT_MAX_RETRIES = 3
MAX_PRIORITY = 9
MAX_RETRIES = 1_000
MAX_CAPACITY = 1_000_000_000_000
MAX_WEIGHT = 1_000_000  # of a priority


@dataclass(slots=True, kw_only=True)
class QueueSettings:
    """The settings that a queue can be given, and that can be changed while it stands."""

    max_retries: int = DEFAULT_MAX_RETRIES
    ttl: float | None = None
    timeout: float | None = None
    capacity: int = 0  # PENDING jobs at most; 0 = unbounded
    retry_profile: str = "default"
    retry_base: float | None = None  # these three: None = what the profile says
    retry_max: float | None = None
    retry_jitter: float | None = None
    priority_weights: Mapping[int, int] | None = None  # None = strict
    retention: float | None = None  # of DONE jobs; 0: for ever; None: as the server says
    dead_letter_retention: float | None = None  # the same of dead letters

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long failed jobs wait."""
        return policy_of(self.retry_profile, self.retry_base, self.retry_max, self.retry_jitter)


class SettingsSaid(TypedDict, total=False):
    """Some settings of a queue; None puts one back to what the server is configured to."""

    max_retries: int | None
    ttl: float | None
    timeout: float | None
    capacity: int | None
    retry_profile: str | None
    retry_base: float | None
    retry_max: float | None
    retry_jitter: float | None
    priority_weights: Mapping[int, int] | None
    retention: float | None
    dead_letter_retention: float | None


class Kind(enum.Enum):
    """What a value is. The text is what a program is told that gives another one."""

    WHOLE = "a whole number"
    SECONDS = "a number of seconds"
    SHARE = "a number from 0 to 1"
    PROFILE = "the name of a profile"
    WEIGHTS = "weights by priority, as {9: 5, 0: 1}"

    def fits(self, value: object) -> bool:
        """Whether a program's value is of this kind: a store would keep another, or break."""
        if self is Kind.WHOLE:
            return type(value) is int
        if self is Kind.PROFILE:
            return isinstance(value, str)
        if self is Kind.WEIGHTS:
            return isinstance(value, Mapping) and all(
                type(figure) is int for pair in value.items() for figure in pair
            )
        return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a queue."""

    name: str
    kind: Kind
    title: str  # in tables for people
    most: float = MAX_SECONDS
    zero: str = ""  # what 0 means; empty: a length of time that must be more than 0

    @property
    def wire_name(self) -> str:
        """Its name in messages, where lengths of time say so."""
        return f"{self.name}_seconds" if self.kind is Kind.SECONDS else self.name

    def check(self, value: Any) -> None:
        """Refuse what makes no sense. Retries' figures are judged together (``check_retry``)."""
        if value is None or self.name.startswith("retry_"):
            return
        if self.kind is Kind.WEIGHTS:
            _check_weights(self.name, value)
        elif not self._within(value):
            raise InvalidArgument(self.name, self._range(value))

    def _within(self, value: Any) -> bool:
        """NaN is in no range."""
        from_zero = self.zero or self.kind is Kind.WHOLE
        return bool(0 <= value <= self.most if from_zero else 0 < value <= self.most)

    def _range(self, value: Any) -> str:
        unit = " seconds" if self.kind is Kind.SECONDS else ""
        if self.zero:
            return f"must be 0 ({self.zero}) to {self.most:.0f}{unit}"
        if self.kind is Kind.WHOLE:
            return f"{value} is outside 0 to {self.most:.0f}"
        return f"must be more than 0 and at most {self.most:.0f}{unit}"


def _check_weights(field: str, weights: Mapping[int, int]) -> None:
    for priority, weight in weights.items():
        if not 0 <= priority <= MAX_PRIORITY or not 1 <= weight <= MAX_WEIGHT:
            raise InvalidArgument(
                field,
                f"{priority}:{weight} is not a priority 0 to {MAX_PRIORITY} and a weight 1 to"
                f" {MAX_WEIGHT}",
            )


SETTINGS: Mapping[str, Setting] = {
    one.name: one
    for one in (
        Setting("max_retries", Kind.WHOLE, "Max retries", MAX_RETRIES),
        Setting("ttl", Kind.SECONDS, "TTL"),
        Setting("timeout", Kind.SECONDS, "Timeout"),
        Setting("capacity", Kind.WHOLE, "Capacity", MAX_CAPACITY, zero="unbounded"),
        Setting("retry_profile", Kind.PROFILE, "Retry profile"),
        Setting("retry_base", Kind.SECONDS, "Retry base"),
        Setting("retry_max", Kind.SECONDS, "Retry max"),
        Setting("retry_jitter", Kind.SHARE, "Retry jitter"),
        Setting("priority_weights", Kind.WEIGHTS, "Priority weights"),
        Setting("retention", Kind.SECONDS, "DONE jobs kept", zero="for ever"),
        Setting("dead_letter_retention", Kind.SECONDS, "Dead letters kept", zero="for ever"),
    )
}


@dataclass(slots=True, kw_only=True)
class Queue(QueueSettings):
    """A named queue and its settings."""

    name: str
    paused: bool = False
    created_at: float = 0.0

    def settings(self) -> dict[str, Any]:
        """Its settings by name."""
        return {name: getattr(self, name) for name in SETTINGS}

    def check(self) -> None:
        """Refuse settings that make no sense; the name is judged elsewhere."""
        for name, setting in SETTINGS.items():
            setting.check(getattr(self, name))
        check_retry(self.retry_profile, self.retry_base, self.retry_max, self.retry_jitter)


def _check_kinds(said: Mapping[str, Any]) -> None:
    for name, value in said.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise TypeError(f"a queue has no setting {name!r}; there are: {', '.join(SETTINGS)}")
        if value is not None and not setting.kind.fits(value):
            raise InvalidArgument(name, f"expected {setting.kind.value}, got {value!r:.80}")


def _defaults(profile: str, server: QueueSettings) -> dict[str, Any]:
    """What the server is configured to. Its own figures of retries go with its own profile."""
    found = {name: getattr(server, name) for name in SETTINGS}
    if profile != server.retry_profile:
        found |= {"retry_base": None, "retry_max": None, "retry_jitter": None}
    return found


@dataclass(slots=True, init=False)
class QueueSpec:
    """A queue as an operator asks for it: what is not said is what the server is configured to.

    ``retry_base``, ``retry_max`` (seconds) and ``retry_jitter`` (a share, 0 to 1) stand in place
    of the profile's: the first wait, the longest, and how much of a wait is random. ``retention``
    is how many seconds DONE jobs are kept, ``dead_letter_retention`` the same of dead letters; 0
    is for ever, and a queue without them follows the server's settings.
    """

    name: str
    paused: bool
    said: SettingsSaid

    def __init__(
        self, name: str, *, paused: bool = False, **settings: Unpack[SettingsSaid]
    ) -> None:
        for field, value, kind in (("name", name, str), ("paused", paused, bool)):
            if not isinstance(value, kind):
                expected = "a text" if kind is str else "True or False"
                raise InvalidArgument(field, f"expected {expected}, got {value!r:.80}")
        _check_kinds(settings)
        self.name = name
        self.paused = paused
        self.said = settings

    def resolve(self, server: QueueSettings) -> Queue:
        """Fill in what was not said."""
        said: dict[str, Any] = {n: value for n, value in self.said.items() if value is not None}
        values = _defaults(said.get("retry_profile", server.retry_profile), server) | said
        values["priority_weights"] = values["priority_weights"] or None  # none: strict
        return Queue(name=self.name, paused=self.paused, **values)


@dataclass(slots=True, init=False)
class QueueUpdate:
    """What an operator changes of a queue: the settings that are said, and nothing else."""

    said: SettingsSaid

    def __init__(self, **settings: Unpack[SettingsSaid]) -> None:
        _check_kinds(settings)
        self.said = settings

    def resolve(self, queue: Queue, server: QueueSettings) -> dict[str, Any]:
        """The new values, by name, for the queue as it stands."""
        said: dict[str, Any] = dict(self.said)
        if "retry_profile" in said and said["retry_profile"] is None:
            said["retry_profile"] = server.retry_profile
        defaults = _defaults(said.get("retry_profile", queue.retry_profile), server)
        values = {name: defaults[name] if value is None else value for name, value in said.items()}
        if "priority_weights" in values:
            values["priority_weights"] = values["priority_weights"] or None  # none: strict
        return values


COUNTED_TO = 10_000
"""As many claimable jobs of one type are counted, for people."""


@dataclass(frozen=True, slots=True)
class WaitingType:
    """Claimable jobs of one type in one queue."""

    queue: str
    type: str
    jobs: int  # counted up to a limit

    @property
    def count(self) -> str:
        """How many, for people."""
        return f"{self.jobs}+" if self.jobs >= COUNTED_TO else str(self.jobs)


@dataclass(slots=True, kw_only=True)
class QueueStats:
    """A queue with its figures."""

    queue: Queue
    depth: Mapping[State, int]
    processed: int = 0  # attempts that ended, well or not
    succeeded: int = 0
    failed: int = 0
    run_seconds: float = 0.0
    timed: int = 0  # attempts that run_seconds sums over
    # Claimable jobs that no connected worker takes, by type, the most first: set by the engine.
    unserved: tuple[WaitingType, ...] = ()

    @property
    def average_seconds(self) -> float:
        """Mean processing time of an attempt."""
        return self.run_seconds / self.timed if self.timed else 0.0

    @property
    def error_rate(self) -> float:
        """Share of ended attempts that failed."""
        return self.failed / self.processed if self.processed else 0.0

    @property
    def unfinished(self) -> int:
        """Jobs that are neither DONE nor DEAD_LETTERED."""
        return sum(
            count
            for state, count in self.depth.items()
            if state not in (State.DONE, State.DEAD_LETTERED)
        )
