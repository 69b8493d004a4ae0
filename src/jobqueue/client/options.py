"""Define, check and merge the options with which jobs are submitted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MORE, NO_LABELS, JobSpec
from jobqueue.core.retry import Backoff
from jobqueue.tasks.task import TaskOptions
from jobqueue.tasks.unique import Unique, check_unique

Seconds = float | timedelta
"""A duration in seconds, or a timedelta."""

_COPIED = tuple(name for name in MORE if name != "unique")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Holds options that override a task's options.

    None stands for the task's option, or the queue's setting if the task has no such option.
    """

    queue: str | None = None
    priority: int | None = None
    max_retries: int | None = None
    timeout: float | None = None
    ttl: float | None = None
    delay: float | None = None
    run_at: float | None = None
    key: str | None = None
    unique: Unique | None = None
    concurrency_key: str | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)

    def over(self, earlier: SubmitOptions) -> SubmitOptions:
        """Return these options, with the options of ``earlier`` in place of None."""
        said = {
            name: value
            for name in self.__slots__
            if (value := getattr(self, name)) is not None and name != "labels"
        }
        if "delay" in said and "run_at" not in said:
            said["run_at"] = None
        if "run_at" in said and "delay" not in said:
            said["delay"] = None
        return replace(earlier, labels={**earlier.labels, **self.labels}, **said)

    def spec(self, payload: bytes, name: str, task: TaskOptions) -> JobSpec:
        """Return the spec of the job to submit, with the task's options in place of None.

        The caller sets its unique key, which may depend on the arguments.
        """
        return JobSpec(
            payload=payload,
            queue=task.queue if self.queue is None else self.queue,
            type=name,
            priority=task.priority if self.priority is None else self.priority,
            max_retries=task.max_retries if self.max_retries is None else self.max_retries,
            ttl=task.ttl if self.ttl is None else self.ttl,
            delay=self.delay,
            run_at=self.run_at,
            timeout=task.timeout if self.timeout is None else self.timeout,
            key=self.key,
            labels=self.labels,
            **{name: said for name in _COPIED if (said := getattr(self, name)) is not None},
        )


NO_OPTIONS = SubmitOptions()


class SubmitSaid(TypedDict, total=False):
    """The options of a submit, in the types that callers may give. None means: not given.

    At most one of ``delay`` and ``run_at`` may be given.
    """

    queue: str | None
    priority: int | None
    max_retries: int | None
    timeout: Seconds | None
    ttl: Seconds | None
    delay: Seconds | None
    run_at: datetime | float | None
    key: str | None
    unique: Unique | None
    concurrency_key: str | None
    labels: Mapping[str, str] | None


def submit_options(**said: Unpack[SubmitSaid]) -> SubmitOptions:
    """Convert and check the options that a caller gave."""
    for name in said.keys() - SubmitSaid.__annotations__.keys():
        allowed = ", ".join(SubmitSaid.__annotations__)
        raise TypeError(f"a job has no option {name!r}; allowed: {allowed}")
    if said.get("delay") is not None and said.get("run_at") is not None:
        raise InvalidArgument("delay", "give delay or run_at, not both")
    values: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    for name in ("timeout", "ttl", "delay"):
        if name in values:
            values[name] = seconds(name, values[name])
    if "run_at" in values:
        values["run_at"] = moment("run_at", values["run_at"])
    check_unique(values.get("unique"))
    if "labels" in values:
        values["labels"] = dict(values["labels"])
    return SubmitOptions(**values)


def seconds(name: str, value: Seconds | None) -> float | None:
    """Convert a duration to seconds. ``name`` is the option's name in errors."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _number(name, value, "seconds or a timedelta")


def backoff(value: Any) -> Backoff | tuple[float, ...]:
    """Convert and check the option ``backoff``: the waits before a task's retries.

    The value is one wait for all retries, a list of waits, or a ``Backoff``.
    """
    if isinstance(value, Backoff):
        return value
    several = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    waits: list[float] = []
    for one in value if several else [value]:
        try:
            wait = seconds("backoff", one)
        except InvalidArgument:
            wait = None
        if wait is None:
            waits.clear()
            break
        if not 0 <= wait <= MAX_SECONDS:  # NaN, too
            raise InvalidArgument("backoff", f"must be 0 to {MAX_SECONDS:.0f} s, got {wait:g} s")
        waits.append(wait)
    if not waits:
        raise InvalidArgument(
            "backoff",
            "expected seconds, a list of seconds, or Backoff(base, max, jitter), got"
            f" {value!r:.80}",
        )
    return tuple(waits)


def exceptions(name: str, value: Any) -> tuple[type[BaseException], ...]:
    """Convert one or more exception classes to a tuple. ``name`` is the option's name in errors."""
    several = isinstance(value, Iterable) and not isinstance(value, type | str | bytes)
    found = tuple(value) if several else (value,)
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidArgument(
                name, f"expected exception classes, like (OSError, TimeoutError), got {kind!r:.80}"
            )
    return found


def moment(name: str, value: datetime | float | None) -> float | None:
    """Convert a point in time to seconds since the epoch. ``name`` is the option's name in errors.

    A datetime must have a time zone.
    """
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(
                name, "a datetime needs a time zone, like datetime.now(UTC) + timedelta(hours=1)"
            )
        return value.timestamp()
    return _number(name, value, "a datetime or epoch seconds")


def _number(name: str, value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(name, f"expected {expected}, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        return math.inf  # the engine's admission refuses this value
