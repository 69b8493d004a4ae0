"""The tasks a worker can execute, by name, and the schedules of those that run by themselves."""

from __future__ import annotations

from collections.abc import Callable

from jobqueue.core.errors import AlreadyExists
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.core.queue import QueueSpec
from jobqueue.worker import builtin
from jobqueue.worker.periodic import CATCH_UP, Schedule
from jobqueue.worker.task import DEFAULT_OPTIONS, TaskDefinition, TaskOptions, define

__all__ = ["DEFAULT_OPTIONS", "Registry", "TaskDefinition", "TaskOptions", "define"]


class Registry:
    """A user's tasks over the built-in ones; a user's task may take a built-in's name."""

    def __init__(self) -> None:
        self._builtin = {task.name: task for task in builtin.definitions()}
        self._tasks: dict[str, TaskDefinition] = {}
        self._default: TaskDefinition | None = None
        # Called, in whichever thread, when there is a new task: running workers say so.
        self.listeners: list[Callable[[], None]] = []
        self._queues: dict[str, QueueSpec] = {}
        self.schedules: dict[str, Schedule] = {}
        self.catch_up = CATCH_UP  # seconds; what the app says, a setting may say otherwise

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

    def add_schedule(self, schedule: Schedule) -> None:
        """Have a task's job submitted at the schedule's times, by every worker's process."""
        self.check_schedule(schedule.name)
        self.schedules[schedule.name] = schedule

    def check_schedule(self, name: str) -> None:
        """Refuse a name that is taken: it is part of the key that makes one job of a tick."""
        if name in self.schedules:
            raise AlreadyExists(f"schedule {name!r} is defined twice; give one of them a name=")

    def get(self, type: str) -> TaskDefinition | None:
        """Find a task by name; no name finds the default."""
        if not type:
            return self.default
        return self._tasks.get(type) or self._builtin.get(type)

    @property
    def default(self) -> TaskDefinition:
        """The handler of jobs without a type: the user's choice, or ``echo``."""
        return self._default or self._tasks.get("echo") or self._builtin["echo"]

    def names(self) -> list[str]:
        """Every task known, built-in ones too, by name."""
        return sorted({*self._tasks, *self._builtin})

    def types(self) -> frozenset[str]:
        """The types of jobs that it has a task for; the empty one finds the default."""
        return frozenset(("", *self._tasks, *self._builtin))

    def declare(self, queue: QueueSpec) -> None:
        """Say how a queue is to be created that tasks name, or add one that none names."""
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
