"""The tasks that a worker can execute, the built-in ones among them, and the schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jobqueue.core.errors import AlreadyExists, InvalidArgument
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.queue import QueueSpec
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import TaskDefinition, define
from jobqueue.worker.periodic import CATCH_UP, Schedule

MAX_SIMULATED_BYTES = 16 * 1024 * 1024


async def echo(payload: bytes) -> bytes:
    """Return the payload as it is."""
    return payload


async def sleep(seconds: float = 1.0) -> dict[str, Any]:
    """Do nothing for a while; a cancel ends it at once."""
    if seconds < 0:
        raise InvalidArgument("seconds", f"must not be negative, got {seconds}")
    await asyncio.sleep(seconds)
    return {"slept": seconds}


async def fail(
    ctx: Context, message: str = "failed on purpose", times: int | None = None
) -> dict[str, Any]:
    """Fail the first ``times`` attempts, or every one."""
    if times is None or ctx.attempt <= times:
        raise RuntimeError(message)
    return {"attempts": ctx.attempt}


async def simulate(work_duration_ms: int = 0, payload_size_bytes: int = 0) -> dict[str, Any]:
    """Take that long and return that much."""
    if work_duration_ms < 0:
        raise InvalidArgument("work_duration_ms", f"must not be negative, got {work_duration_ms}")
    if not 0 <= payload_size_bytes <= MAX_SIMULATED_BYTES:
        raise InvalidArgument(
            "payload_size_bytes", f"must be 0 to {MAX_SIMULATED_BYTES}, got {payload_size_bytes}"
        )
    await asyncio.sleep(work_duration_ms / 1000)
    return {"work_duration_ms": work_duration_ms, "output": "x" * payload_size_bytes}


class Registry:
    """A user's tasks over the built-in ones; a user's task may take a built-in's name."""

    def __init__(self) -> None:
        self._builtin = {fn.__name__: define(fn) for fn in (echo, sleep, fail, simulate)}
        self._tasks: dict[str, TaskDefinition] = {}
        self._provided: dict[str, TaskDefinition] = {}
        self._default: TaskDefinition | None = None
        # Called, in any thread, when a task is added: running workers register it.
        self.listeners: list[Callable[[], None]] = []
        self._queues: dict[str, QueueSpec] = {}
        self.schedules: dict[str, Schedule] = {}
        self.catch_up = CATCH_UP  # seconds; the app sets it, and a setting goes before it

    def add(self, definition: TaskDefinition, *, default: bool = False) -> TaskDefinition:
        """Register a task; ``default`` makes it the handler of jobs that name none."""
        if definition.name in self._tasks:
            raise AlreadyExists(f"task {definition.name!r} is defined twice")
        if default and self._default is not None:
            raise AlreadyExists(
                f"task {definition.name!r} cannot be the default: {self._default.name!r} is"
            )
        self._tasks[definition.name] = definition
        if default:
            self._default = definition
        for listener in list(self.listeners):
            listener()
        return definition

    def provide(self, definition: TaskDefinition) -> None:
        """Add a task of the process itself: workers execute its jobs, and no error text names it.

        Its queue is created with the first such job. A user's task may take its name.
        """
        self._provided[definition.name] = definition

    def provided_queues(self) -> frozenset[str]:
        return frozenset(task.options.queue for task in self._provided.values())

    def add_schedule(self, schedule: Schedule) -> None:
        """Let every worker's process submit a task's job at the schedule's times."""
        self.check_schedule(schedule.name)
        self.schedules[schedule.name] = schedule

    def check_schedule(self, name: str) -> None:
        """Refuse a name that is taken: it is part of the key that makes one job of a tick."""
        if name in self.schedules:
            raise AlreadyExists(f"schedule {name!r} is defined twice; give one of them a name=")

    def get(self, type: str) -> TaskDefinition | None:
        """Find a task by name; an empty name finds the default."""
        if not type:
            return self.default
        return self._tasks.get(type) or self._builtin.get(type) or self._provided.get(type)

    @property
    def default(self) -> TaskDefinition:
        """The handler of jobs without a type: the user's choice, or ``echo``."""
        return self._default or self._tasks.get("echo") or self._builtin["echo"]

    def names(self) -> list[str]:
        """The user's tasks and the built-in ones, by name."""
        return sorted({*self._tasks, *self._builtin})

    def types(self) -> frozenset[str]:
        """The types of jobs that have a task here; the empty type finds the default."""
        return frozenset(("", *self._tasks, *self._builtin, *self._provided))

    def declare(self, queue: QueueSpec) -> None:
        """Set how a queue is created; it need not be the queue of a task."""
        self._queues[queue.name] = queue

    def declared(self) -> dict[str, QueueSpec]:
        """The queues to create for the user's tasks and schedules, and those declared, by name."""
        return {name: QueueSpec(name=name) for name in sorted(self._named())} | self._queues

    def queues(self) -> tuple[str, ...]:
        """The queues of the user's tasks and schedules, by name; ``default`` without any."""
        return tuple(sorted(self._named())) or (DEFAULT_QUEUE,)

    def _named(self) -> set[str]:
        tasks = {task.options.queue for task in self._tasks.values()}
        return tasks | {schedule.spec.queue for schedule in self.schedules.values()}
