"""A distributed job queue that starts in one process and grows to many."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobqueue._version import __version__

if TYPE_CHECKING:
    from jobqueue.access.tls import Tls
    from jobqueue.client.app import JobQueue
    from jobqueue.client.handle import JobHandle
    from jobqueue.client.tasks import Task
    from jobqueue.core.breaker import Breaker
    from jobqueue.core.errors import (
        DeadlineExceeded,
        InvalidArgument,
        JobFailed,
        JobQueueError,
        NotUnique,
        QueueFull,
        RateLimited,
    )
    from jobqueue.core.job import Job
    from jobqueue.core.lifecycle import State
    from jobqueue.core.queue import QueueSpec
    from jobqueue.core.retry import Backoff
    from jobqueue.taskqueue.client.blocking import SyncTaskQueueClient
    from jobqueue.taskqueue.client.client import TaskQueueClient
    from jobqueue.tasks.context import Abort, Context, RetryLater
    from jobqueue.tasks.unique import Unique

__all__ = [
    "Abort",
    "Backoff",
    "Breaker",
    "Context",
    "DeadlineExceeded",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobQueue",
    "JobQueueError",
    "NotUnique",
    "QueueFull",
    "QueueSpec",
    "RateLimited",
    "RetryLater",
    "State",
    "SyncTaskQueueClient",
    "Task",
    "TaskQueueClient",
    "Tls",
    "Unique",
    "__version__",
]

# Imported at the first use, so that the programs in jobqueue.cli start without unneeded modules.
_MODULES = {
    "Abort": "tasks.context",
    "Backoff": "core.retry",
    "Breaker": "core.breaker",
    "Context": "tasks.context",
    "DeadlineExceeded": "core.errors",
    "InvalidArgument": "core.errors",
    "Job": "core.job",
    "JobFailed": "core.errors",
    "JobHandle": "client.handle",
    "JobQueue": "client.app",
    "JobQueueError": "core.errors",
    "NotUnique": "core.errors",
    "QueueFull": "core.errors",
    "QueueSpec": "core.queue",
    "RateLimited": "core.errors",
    "RetryLater": "tasks.context",
    "State": "core.lifecycle",
    "SyncTaskQueueClient": "taskqueue.client.blocking",
    "Task": "client.tasks",
    "TaskQueueClient": "taskqueue.client.client",
    "Tls": "access.tls",
    "Unique": "tasks.unique",
}


if not TYPE_CHECKING:  # a type checker would accept every name because of ``__getattr__``

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
