"""Define the option ``unique`` of tasks and submits, and compute the unique keys of jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.unique import UniqueKey
from jobqueue.tasks.codec import canonical

if TYPE_CHECKING:
    from jobqueue.tasks.task import TaskDefinition


@dataclass(frozen=True, slots=True)
class Unique:
    """Keeps equal jobs from being submitted beside each other.

    Jobs of a queue are equal if they have the same ``key``: a text, or a function that gets the
    task's arguments by name and returns a text. Without a key, jobs of one task are equal if their
    arguments are equal.

    An earlier job with the key is in the way until it has ended. With ``scope="waiting"`` it is in
    the way only while it waits: for a worker, its time, or a retry. With ``period``, it is in the
    way for that many seconds after its submit, whatever becomes of it.

    ``on_conflict`` says what a submit does if an earlier job is in the way. ``existing`` returns
    the handle of the earlier job, and ``created`` of the handle is False. ``reject`` raises
    NotUnique. ``replace`` takes the place of the earlier job, which must be waiting; with a delay
    this is a debounce.
    """

    key: str | Callable[..., str] | None = None
    scope: Literal["unfinished", "waiting"] = "unfinished"
    period: float | timedelta | None = None
    on_conflict: Literal["existing", "reject", "replace"] = "existing"

    def __post_init__(self) -> None:
        if self.key is not None and not isinstance(self.key, str) and not callable(self.key):
            raise InvalidArgument(
                "unique.key",
                f"expected a text, or a function of the task's arguments, got {self.key!r:.80}",
            )
        self._with(self.key if isinstance(self.key, str) else "some").check()

    def _with(self, key: str) -> UniqueKey:
        return UniqueKey(
            key=key, scope=self.scope, period=_seconds(self.period), on_conflict=self.on_conflict
        )

    def of_call(self, task: TaskDefinition, arguments: Mapping[str, Any], raw: bytes) -> UniqueKey:
        """Return the unique key of a task's job with these arguments and the payload ``raw``.

        Raises InvalidArgument if the task's function of the key fails, or returns no text.
        """
        if self.key is None:
            return self._with(_equal(task.name, task.codec.canonical(raw)))
        if isinstance(self.key, str):
            return self._with(self.key)
        try:
            key: object = self.key(**arguments)
        except Exception as error:
            raise InvalidArgument(
                "unique.key",
                f"the function for task {task.name!r} raised {type(error).__name__}: {error}",
            ) from error
        if not isinstance(key, str):
            raise InvalidArgument(
                "unique.key",
                f"the function for task {task.name!r} must return a text, got {key!r:.80}",
            )
        return self._with(key)

    def of_payload(self, type: str, raw: bytes) -> UniqueKey:
        """Return the unique key of a job whose task this program does not know."""
        if callable(self.key):
            raise InvalidArgument(
                "unique.key", f"a function needs the arguments of a task; give a text for {type!r}"
            )
        return self._with(_equal(type, canonical(raw)) if self.key is None else self.key)


def check_unique(value: object) -> None:
    """Raise InvalidArgument unless ``value`` is a Unique or None."""
    if value is not None and not isinstance(value, Unique):
        shown = f"Unique({value!r:.80})" if isinstance(value, str) else "Unique()"
        raise InvalidArgument("unique", f"expected a Unique, like {shown}, got {value!r:.80}")


def _equal(name: str, content: bytes) -> str:
    return f"{name}:{hashlib.blake2b(content, digest_size=16).hexdigest()}"


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InvalidArgument("unique.period", f"expected seconds or a timedelta, got {value!r}")
    return value
