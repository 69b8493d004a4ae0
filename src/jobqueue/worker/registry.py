"""Keep the tasks that a worker can execute, with the built-in tasks, and the schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from jobqueue.core.errors import AlreadyExists, InvalidArgument
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.queue import QueueSpec
from jobqueue.core.schedule import CATCH_UP, ScheduleSpec
from jobqueue.core.store import ALL_QUEUES
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import TaskDefinition, define

MAX_SIMULATED_BYTES = 16 * 1024 * 1024


async def echo(payload: bytes) -> bytes:
    """Return the job's payload unchanged."""
    return payload


async def sleep(seconds: float = 1.0) -> dict[str, Any]:
    """Wait for ``seconds``. A cancel ends the wait at once."""
    if seconds < 0:
        raise InvalidArgument("seconds", f"must not be negative, got {seconds}")
    await asyncio.sleep(seconds)
    return {"slept": seconds}


async def fail(
    ctx: Context, message: str = "failed on purpose", times: int | None = None
) -> dict[str, Any]:
    """Fail the first ``times`` attempts of the job, or every attempt if ``times`` is None."""
    if times is None or ctx.attempt <= times:
        raise RuntimeError(message)
    return {"attempts": ctx.attempt}


async def simulate(work_duration_ms: int = 0, payload_size_bytes: int = 0) -> dict[str, Any]:
    """Wait for ``work_duration_ms``, then return an output of ``payload_size_bytes``."""
    if work_duration_ms < 0:
        raise InvalidArgument("work_duration_ms", f"must not be negative, got {work_duration_ms}")
    if not 0 <= payload_size_bytes <= MAX_SIMULATED_BYTES:
        raise InvalidArgument(
            "payload_size_bytes", f"must be 0 to {MAX_SIMULATED_BYTES}, got {payload_size_bytes}"
        )
    await asyncio.sleep(work_duration_ms / 1000)
    return {"work_duration_ms": work_duration_ms, "output": "x" * payload_size_bytes}


class Registry:
    """Holds the user's tasks, the built-in tasks, the schedules and the declared queues.

    A user's task may have the name of a built-in task, and then replaces it.
    """

    def __init__(self) -> None:
        self._builtin = {fn.__name__: define(fn) for fn in (echo, sleep, fail, simulate)}
        self._tasks: dict[str, TaskDefinition] = {}
        self._provided: dict[str, TaskDefinition] = {}
        self._default: TaskDefinition | None = None
        # Called when a task is added, in the adding thread. Running workers register the task.
        self.listeners: list[Callable[[], None]] = []
        self.has_breakers = False  # True if a task has a breaker; read at the end of every job
        self._queues: dict[str, QueueSpec] = {}
        self.schedules: dict[str, ScheduleSpec] = {}
        self.catch_up = CATCH_UP  # seconds; set by the app, overridden by a setting

    def add(self, definition: TaskDefinition, *, default: bool = False) -> TaskDefinition:
        """Register a task. With ``default`` the task runs the jobs that have no type."""
        if definition.name in self._tasks:
            raise AlreadyExists(
                f"task {definition.name!r} is defined twice: give one of them another name="
            )
        if default and self._default is not None:
            raise AlreadyExists(
                f"task {definition.name!r} cannot be the default task, because task"
                f" {self._default.name!r} is the default task already"
            )
        self._tasks[definition.name] = definition
        self.has_breakers = self.has_breakers or definition.options.breaker is not None
        if default:
            self._default = definition
        for listener in list(self.listeners):
            listener()
        return definition

    def provide(self, definition: TaskDefinition) -> None:
        """Add an internal task. Workers of this process execute it, but error texts do not name it.

        A server creates the task's queue when the task's first job is submitted. A user's task may
        have the same name, and then replaces this task.
        """
        self._provided[definition.name] = definition

    def provided_queues(self) -> frozenset[str]:
        """Return the queues of the internal tasks that ``provide`` added."""
        return frozenset(task.options.queue for task in self._provided.values())

    def add_schedule(self, schedule: ScheduleSpec) -> None:
        """Add a schedule, which every worker process declares when it starts."""
        self.check_schedule(schedule.name)
        self.schedules[schedule.name] = schedule

    def check_schedule(self, name: str) -> None:
        """Raise AlreadyExists if a schedule with this name exists.

        The name must be unique, because the key of each fire time's job contains it.
        """
        if name in self.schedules:
            raise AlreadyExists(
                f"schedule {name!r} is defined twice: give one of them another name="
            )

    def get(self, type: str) -> TaskDefinition | None:
        """Return the task for jobs of this type, or None. An empty type means the default task."""
        if not type:
            return self.default
        return self._tasks.get(type) or self._builtin.get(type) or self._provided.get(type)

    @property
    def default(self) -> TaskDefinition:
        """Return the task for jobs without a type: the user's default task, else ``echo``."""
        return self._default or self._tasks.get("echo") or self._builtin["echo"]

    def batches(self, queues: Collection[str]) -> list[TaskDefinition]:
        """Return the user's batch tasks whose own queue is among ``queues``."""
        return [
            task
            for task in self._tasks.values()
            if task.options.batch is not None
            and (task.options.queue in queues or ALL_QUEUES in queues)
        ]

    def with_breaker(self) -> list[TaskDefinition]:
        """Return the user's tasks that have a breaker."""
        return [task for task in self._tasks.values() if task.options.breaker is not None]

    def names(self) -> list[str]:
        """Return the sorted names of the user's tasks and of the built-in tasks."""
        return sorted({*self._tasks, *self._builtin})

    def types(self) -> frozenset[str]:
        """Return the types of the jobs that this process can execute.

        The empty type stands for jobs without a type, which the default task executes.
        """
        return frozenset(("", *self._tasks, *self._builtin, *self._provided))

    def declare(self, queue: QueueSpec) -> None:
        """Declare the settings with which a queue is created, even if no task uses the queue."""
        self._queues[queue.name] = queue

    def declared(self) -> dict[str, QueueSpec]:
        """Return the queues to create, by name.

        These are the queues of the user's tasks and schedules, and the declared queues.
        """
        return {name: QueueSpec(name=name) for name in sorted(self._named())} | self._queues

    def queues(self) -> tuple[str, ...]:
        """Return the sorted queues of the user's tasks and schedules; ``default`` if none exist."""
        return tuple(sorted(self._named())) or (DEFAULT_QUEUE,)

    def _named(self) -> set[str]:
        tasks = {task.options.queue for task in self._tasks.values()}
        return tasks | {schedule.job.queue for schedule in self.schedules.values()}
