"""Define the settings of queues, and the order in which jobs of several queues are claimed.

``SETTINGS`` declares each setting once: its kind of value, its limits and its title. Stores, wire
formats, answers and ``jq-ctl`` read this table; none of them lists the settings again.
"""

from __future__ import annotations

import enum
import heapq
import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypedDict, TypeVar, Unpack

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.limits import SECOND, Limits, rate_of
from jobqueue.core.retry import RetryPolicy, check_retry, policy_of
from jobqueue.core.texts import MAX_CONCURRENCY_KEY_LENGTH, check_text

DEFAULT_MAX_RETRIES = 3
MAX_PRIORITY = 9
MAX_RETRIES = 1_000
MAX_CAPACITY = 1_000_000_000_000
MAX_WEIGHT = 1_000_000  # of a priority
MAX_KEY_WEIGHTS = 1_000
MAX_LIMIT = 1_000_000_000  # of running jobs, and of starts
MAX_STARTS = 100_000  # in a second, by a rate limit


@dataclass(slots=True, kw_only=True)
class QueueSettings:
    """The settings of a queue. They can be changed while the queue exists."""

    max_retries: int = DEFAULT_MAX_RETRIES
    ttl: float | None = None
    timeout: float | None = None
    capacity: int = 0  # PENDING jobs at most; 0 = unbounded
    retry_profile: str = "default"
    retry_base: float | None = None  # these three: None = as the profile says
    retry_max: float | None = None
    retry_jitter: float | None = None
    priority_weights: Mapping[int, int] | None = None  # None = strict
    retention: float | None = None  # seconds of DONE jobs; 0 = for ever; None = the server's
    dead_letter_retention: float | None = None  # the same for dead letters
    max_running: int | None = None  # jobs that workers hold at the same time; None = no limit
    rate: int | None = None  # starts in ``rate_period``; None = no limit
    rate_period: float | None = None  # None = 1
    rate_burst: int | None = None  # starts at once after a pause; None = as many as in a second
    key_max_running: int | None = None  # these four: the same for each concurrency key
    key_rate: int | None = None
    key_rate_period: float | None = None
    key_rate_burst: int | None = None
    key_weights: Mapping[str, int] | None = None  # shares of keys; None = in order of age

    @property
    def limits(self) -> Limits | None:
        """Return the limits of the queue, or None if it has none.

        ``limited`` in ``stores/queue_rows.py`` is the same test in SQL.
        """
        if all(getattr(self, name) is None for name in LIMITS):
            return None
        return Limits(
            self.max_running,
            rate_of(self.rate, self.rate_period, self.rate_burst),
            self.key_max_running,
            rate_of(self.key_rate, self.key_rate_period, self.key_rate_burst),
            self.key_weights,
        )

    @property
    def retry_policy(self) -> RetryPolicy:
        return policy_of(self.retry_profile, self.retry_base, self.retry_max, self.retry_jitter)


class SettingsSaid(TypedDict, total=False):
    """The settings of a queue that an operator gave; None stands for the server's setting."""

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
    max_running: int | None
    rate: int | None
    rate_period: float | None
    rate_burst: int | None
    key_max_running: int | None
    key_rate: int | None
    key_rate_period: float | None
    key_rate_burst: int | None
    key_weights: Mapping[str, int] | None


class Kind(enum.Enum):
    """The kind of a setting's value. Errors use the text to say which kind is expected."""

    WHOLE = "a whole number"
    SECONDS = "a number of seconds"
    SHARE = "a number from 0 to 1"
    PROFILE = "the name of a profile"
    WEIGHTS = "weights by priority, as {9: 5, 0: 1}"
    KEY_WEIGHTS = "weights by key, as {'tenant:1': 5, '*': 1}"

    def fits(self, value: object) -> bool:
        """Return True if ``value`` has the Python type of this kind."""
        if self is Kind.WHOLE:
            return type(value) is int
        if self is Kind.PROFILE:
            return isinstance(value, str)
        if self is Kind.WEIGHTS:
            return isinstance(value, Mapping) and all(
                type(figure) is int for pair in value.items() for figure in pair
            )
        if self is Kind.KEY_WEIGHTS:
            return isinstance(value, Mapping) and all(
                isinstance(key, str) and type(weight) is int for key, weight in value.items()
            )
        return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Setting:
    """Declares one setting of queues: its name, kind of value and limits."""

    name: str
    kind: Kind
    title: str  # in tables for people
    most: float = MAX_SECONDS
    zero: str = ""  # the meaning of 0; empty: a duration must be more than 0

    @property
    def wire_name(self) -> str:
        """Return the setting's name in messages, which ends in ``_seconds`` for a duration."""
        return f"{self.name}_seconds" if self.kind is Kind.SECONDS else self.name

    def check(self, value: Any) -> None:
        """Raise InvalidArgument if the value is out of range.

        Settings that begin with ``retry_`` are skipped; ``check_retry`` checks them together.
        """
        if value is None or self.name.startswith("retry_"):
            return
        if self.kind is Kind.WEIGHTS:
            _check_weights(self.name, value)
        elif self.kind is Kind.KEY_WEIGHTS:
            _check_key_weights(self.name, value)
        elif not self._within(value):
            raise InvalidArgument(self.name, self._range(value))

    def _within(self, value: Any) -> bool:
        from_zero = self.zero or self.kind is Kind.WHOLE
        return bool(0 <= value <= self.most if from_zero else 0 < value <= self.most)  # not NaN

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


def _check_key_weights(field: str, weights: Mapping[str, int]) -> None:
    if len(weights) > MAX_KEY_WEIGHTS:
        raise InvalidArgument(
            field, f"{len(weights)} keys are too many; at most {MAX_KEY_WEIGHTS} are allowed"
        )
    for key, weight in weights.items():
        check_text(field, key, MAX_CONCURRENCY_KEY_LENGTH)
        if not 1 <= weight <= MAX_WEIGHT:
            raise InvalidArgument(field, f"{key}: {weight} is not a weight from 1 to {MAX_WEIGHT}")


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
        Setting("dead_letter_retention", Kind.SECONDS, "Dead letters kept", zero="until deleted"),
        Setting("max_running", Kind.WHOLE, "Max running", MAX_LIMIT, zero="no limit"),
        Setting("rate", Kind.WHOLE, "Rate", MAX_LIMIT, zero="no limit"),
        Setting("rate_period", Kind.SECONDS, "Rate period"),
        Setting("rate_burst", Kind.WHOLE, "Rate burst", MAX_LIMIT, zero="the starts of a second"),
        Setting("key_max_running", Kind.WHOLE, "Key max running", MAX_LIMIT, zero="no limit"),
        Setting("key_rate", Kind.WHOLE, "Key rate", MAX_LIMIT, zero="no limit"),
        Setting("key_rate_period", Kind.SECONDS, "Key rate period"),
        Setting(
            "key_rate_burst", Kind.WHOLE, "Key rate burst", MAX_LIMIT, zero="the starts of a second"
        ),
        Setting("key_weights", Kind.KEY_WEIGHTS, "Key weights"),
    )
}

LIMITS = ("max_running", "rate", "key_max_running", "key_rate", "key_weights")
"""The settings of which each makes a queue limited."""
_RATES = {
    "rate": ("rate_period", "rate_burst"),
    "key_rate": ("key_rate_period", "key_rate_burst"),
}
"""The settings that mean something only together with a rate limit, by the name of the limit."""
_NONE_BY_ZERO = ("priority_weights", "rate_burst", "key_rate_burst", *LIMITS)
"""The settings for which an empty value means the same as None: the queue has no such limit."""


@dataclass(slots=True, kw_only=True)
class Queue(QueueSettings):
    """A queue: its name and its settings."""

    name: str
    paused: bool = False
    created_at: float = 0.0

    @property
    def closed_until(self) -> float:
        """Return the time from which the queue hands out jobs; infinity while it is paused.

        ``closed_until`` in ``stores/queue_rows.py`` is the same rule in SQL.
        """
        return math.inf if self.paused else 0.0

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    def check(self) -> None:
        """Raise InvalidArgument if a setting is out of range. The queue's name is not checked."""
        for name, setting in SETTINGS.items():
            setting.check(getattr(self, name))
        check_retry(self.retry_profile, self.retry_base, self.retry_max, self.retry_jitter)
        for rate, details in _RATES.items():
            self._check_rate(rate, *details)

    def _check_rate(self, name: str, period: str, burst: str) -> None:
        starts = getattr(self, name)
        if starts is None:
            for one in (period, burst):
                if getattr(self, one) is not None:
                    raise InvalidArgument(one, f"is only allowed together with {name}")
        elif starts > MAX_STARTS * (seconds := getattr(self, period) or SECOND):
            raise InvalidArgument(
                name,
                f"{starts} starts in {seconds:g} s are too many; at most {MAX_STARTS} in a second"
                " are allowed",
            )


def _check_kinds(said: Mapping[str, Any]) -> None:
    for name, value in said.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise TypeError(f"a queue has no setting {name!r}; allowed: {', '.join(SETTINGS)}")
        if value is not None and not setting.kind.fits(value):
            raise InvalidArgument(name, f"expected {setting.kind.value}, got {value!r:.80}")


def _defaults(profile: str, server: QueueSettings) -> dict[str, Any]:
    """Return the server's settings, as defaults for a queue with this retry profile.

    The server's retry numbers apply only to a queue with the server's retry profile.
    """
    found = {name: getattr(server, name) for name in SETTINGS}
    if profile != server.retry_profile:
        found |= {"retry_base": None, "retry_max": None, "retry_jitter": None}
    return found


@dataclass(slots=True, init=False)
class QueueSpec:
    """A queue to create. A setting that is not given is the server's setting.

    ``retry_base`` (the first wait in seconds), ``retry_max`` (the longest wait in seconds) and
    ``retry_jitter`` (the random share of a wait, 0 to 1) replace the values of the retry profile.
    DONE jobs are kept for ``retention`` seconds, dead letters for ``dead_letter_retention``
    seconds; 0 keeps them for ever.
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
        """Return the queue to create, with the server's settings for all that were not given."""
        said: dict[str, Any] = {n: value for n, value in self.said.items() if value is not None}
        values = _defaults(said.get("retry_profile", server.retry_profile), server) | said
        return Queue(name=self.name, paused=self.paused, **_normal(values, said))


@dataclass(slots=True, init=False)
class QueueUpdate:
    """A change of a queue's settings. A setting that is not given does not change."""

    said: SettingsSaid

    def __init__(self, **settings: Unpack[SettingsSaid]) -> None:
        _check_kinds(settings)
        self.said = settings

    def resolve(self, queue: Queue, server: QueueSettings) -> dict[str, Any]:
        """Return the new values of the given settings, by name.

        A setting given as None gets its default, which depends on the queue's retry profile.
        """
        said: dict[str, Any] = dict(self.said)
        if "retry_profile" in said and said["retry_profile"] is None:
            said["retry_profile"] = server.retry_profile
        defaults = _defaults(said.get("retry_profile", queue.retry_profile), server)
        values = {name: defaults[name] if value is None else value for name, value in said.items()}
        return _normal(values, {name for name, value in said.items() if value is not None})


def _normal(values: dict[str, Any], said: Collection[str]) -> dict[str, Any]:
    """Replace 0 by None where 0 means no limit, and remove the details of a rate limit that ends.

    ``said`` are the settings that an operator gave. A queue that loses its rate limit also loses
    the limit's other settings, unless the operator gave them, which is an error.
    """
    for name in _NONE_BY_ZERO:
        if name in values:
            values[name] = values[name] or None
    for rate, details in _RATES.items():
        if rate in values and values[rate] is None:
            said_too = [name for name in details if name in said and values[name] is not None]
            values |= {name: None for name in details if name not in said_too}
    return values


COUNTED_TO = 10_000
"""The largest number to which the claimable jobs of one type are counted."""


@dataclass(frozen=True, slots=True)
class WaitingType:
    """The number of claimable jobs of one type in one queue."""

    queue: str
    type: str
    jobs: int  # at most COUNTED_TO

    @property
    def count(self) -> str:
        return f"{self.jobs}+" if self.jobs >= COUNTED_TO else str(self.jobs)


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of the limits of a queue."""

    queue: str
    held: int  # jobs that are ASSIGNED or RUNNING
    full_at: float  # the state of the bucket of the rate limit
    now: float  # by the store's clock


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of the limits of one concurrency key of a queue."""

    key: str
    held: int  # jobs of the key that are ASSIGNED or RUNNING
    waiting: int  # claimable jobs of the key, counted up to a limit
    full_at: float  # the state of the bucket of its rate limit
    now: float  # by the store's clock


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The claimable jobs of a queue, or of one key of it, that wait because of a limit."""

    limit: str  # the name of the setting
    jobs: int  # at most COUNTED_TO
    # Seconds until a rate limit allows the next start. None: a held job must end first.
    opens_in: float | None = None
    key: str = ""  # empty: the limit is that of the whole queue

    @property
    def count(self) -> str:
        return f"{self.jobs}+" if self.jobs >= COUNTED_TO else str(self.jobs)


def reached(queue: QueueSettings, state: LimitState | KeyState) -> dict[str, float | None]:
    """Return the limits that allow no start now, by the names of their settings.

    These are limits of the queue or of the key, whose state is given. The values are those of
    ``HeldBack.opens_in``.
    """
    limits = queue.limits
    found: dict[str, float | None] = {}
    if limits is None:
        return found
    if isinstance(state, KeyState):
        prefix, most, rate = "key_", limits.key_max_running, limits.key_rate
    else:
        prefix, most, rate = "", limits.max_running, limits.rate
    if most is not None and state.held >= most:
        found[f"{prefix}max_running"] = None
    if rate is not None and not rate.tokens(state.full_at, state.now):
        found[f"{prefix}rate"] = rate.opens_in(state.full_at, state.now)
    return found


@dataclass(slots=True, kw_only=True)
class QueueStats:
    """The settings and counters of a queue."""

    queue: Queue
    depth: Mapping[State, int]
    processed: int = 0  # attempts that ended
    succeeded: int = 0
    failed: int = 0
    run_seconds: float = 0.0
    timed: int = 0  # the number of attempts in ``run_seconds``
    # Claimable jobs that no connected worker accepts, by type; set by the engine. The type with the
    # most jobs is first.
    unserved: tuple[WaitingType, ...] = ()
    held_back: tuple[HeldBack, ...] = ()  # by limits; set by the engine

    @property
    def average_seconds(self) -> float:
        return self.run_seconds / self.timed if self.timed else 0.0

    @property
    def error_rate(self) -> float:
        return self.failed / self.processed if self.processed else 0.0

    @property
    def unfinished(self) -> int:
        return sum(count for state, count in self.depth.items() if state not in TERMINAL)


UNNAMED_WEIGHT = 1
"""The weight of a priority that is not in the queue's weights."""


def share(
    weights: Mapping[int, int],
    present: Sequence[int],
    count: int,
    source: random.Random | None = None,
) -> Counter[int]:
    """Draw at random, by weight, how many of ``count`` slots each priority gets.

    ``present`` are the priorities with waiting jobs. The draw keeps no state between calls.
    """
    if not present:
        return Counter()
    shares = [weights.get(priority, UNNAMED_WEIGHT) for priority in present]
    choices = source.choices if source is not None else random.choices
    return Counter(choices(present, shares, k=count))


Ranked = TypeVar("Ranked", bound=tuple[Any, ...])
"""A claimable job as a store reads it: its rank (9 - priority), its number, then other fields."""


def by_weight(
    weights: Mapping[int, int], levels: Mapping[int, Sequence[Ranked]], limit: int
) -> list[Ranked]:
    """Pick up to ``limit`` jobs of a queue that has priority weights.

    ``levels`` has the queue's claimable jobs by priority. The most urgent job comes first.
    """
    present = [priority for priority, rows in levels.items() if rows]
    drawn = share(weights, present, limit)
    picked: list[Ranked] = []
    rest: list[Ranked] = []
    for priority in present:
        rows = levels[priority]
        picked += rows[: drawn[priority]]
        rest += rows[drawn[priority] :]
    # Slots that a priority cannot fill go to the most urgent jobs of the other priorities.
    rest.sort(key=lambda row: row[:2])
    return sorted(picked + rest[: limit - len(picked)], key=lambda row: row[:2])


def merge_queues(found: Sequence[tuple[bool, Sequence[Ranked]]], limit: int) -> list[Ranked]:
    """Merge the jobs of several queues, the most urgent first, and return at most ``limit`` jobs.

    Each item of ``found`` has True if the queue shares its slots by weights, and its jobs in their
    order. All jobs of such a queue rank like the most urgent of them.
    """
    if len(found) == 1:
        return list(found[0][1][:limit])
    keyed = []
    for shares, rows in found:
        first = min(rows)[:2] if shares and rows else None
        keyed.append([(first or row[:2], place, row) for place, row in enumerate(rows)])
    merged = heapq.merge(*keyed, key=lambda entry: entry[:2])
    return [row for _, _, row in islice(merged, limit)]
