"""The tasks a worker can execute, by name."""

from __future__ import annotations

from jobqueue.core.errors import AlreadyExists
from jobqueue.core.job import DEFAULT_QUEUE
from jobqueue.worker import builtin
from jobqueue.worker.task import DEFAULT_OPTIONS, TaskDefinition, TaskOptions, define

__all__ = ["DEFAULT_OPTIONS", "Registry", "TaskDefinition", "TaskOptions", "define"]


class Registry:
    """A user's tasks over the built-in ones; a user's task may take a built-in's name."""

    def __init__(self) -> None:
        self._builtin = {task.name: task for task in builtin.definitions()}
        self._tasks: dict[str, TaskDefinition] = {}
        self._default: TaskDefinition | None = None

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
        return definition

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

    def queues(self) -> tuple[str, ...]:
        """The queues that the user's tasks declare, by name; ``default`` if there are none."""
        return tuple(sorted({task.options.queue for task in self._tasks.values()})) or (
            DEFAULT_QUEUE,
        )
