"""From what a user writes about a periodic task to a schedule, checked where it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobqueue.client.options import Seconds, seconds
from jobqueue.core.cron import Cron
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.store import Rules
from jobqueue.engine.admission import check_spec
from jobqueue.worker.periodic import CATCH_UP, MAX_NAME_LENGTH, Schedule

if TYPE_CHECKING:
    from jobqueue.client.tasks import Task


def schedule(cron: Cron, task: Task[Any, Any], args: tuple[Any, ...], name: str | None) -> Schedule:
    """A schedule of the task, under its own name unless another is given."""
    name = task.name if name is None else name
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        raise InvalidArgument("name", f"1 to {MAX_NAME_LENGTH} characters are allowed")
    try:
        spec = task.spec(*args)
    except InvalidArgument as error:
        hint = "" if args else "; give arguments by app.periodic(cron, task, *args)"
        raise InvalidArgument(f"schedule {name!r}", f"{error.message}{hint}") from error
    if spec.key is not None:
        raise InvalidArgument("key", "a schedule has a key of its own for every tick")
    if spec.run_at is not None:
        raise InvalidArgument("run_at", "a schedule has its own times; delay is allowed")
    made = Schedule(name, cron, spec)
    try:
        check_spec(made.tick(0.0), len(spec.payload))
    except InvalidArgument as error:
        raise InvalidArgument(f"schedule {name!r}", error.message) from None
    return made


def check_catch_up(value: Seconds | None, rules: Rules) -> float:
    """How late a tick may be submitted: not later than its key is remembered."""
    late = seconds("catch_up", value)
    if late is None:
        return min(CATCH_UP, rules.key_ttl)
    if not 0 <= late <= rules.key_ttl:
        raise InvalidArgument(
            "catch_up",
            f"{late:g} s is not 0 to {rules.key_ttl:g} s, the time an idempotency key is kept",
        )
    return late
