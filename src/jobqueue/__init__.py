"""A distributed job queue that starts in one process and grows to many."""

from jobqueue._version import __version__
from jobqueue.access.tls import Tls
from jobqueue.client.app import JobQueue
from jobqueue.client.handle import JobHandle
from jobqueue.client.taskqueue.blocking import SyncTaskQueueClient
from jobqueue.client.taskqueue.client import TaskQueueClient
from jobqueue.client.tasks import Task
from jobqueue.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    JobFailed,
    JobQueueError,
    QueueFull,
    RateLimited,
)
from jobqueue.core.job import Job, QueueSpec
from jobqueue.core.lifecycle import State
from jobqueue.worker.context import Context
from jobqueue.worker.outcomes import Abort, RetryLater

__all__ = [
    "Abort",
    "Context",
    "DeadlineExceeded",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobQueue",
    "JobQueueError",
    "QueueFull",
    "QueueSpec",
    "RateLimited",
    "RetryLater",
    "State",
    "SyncTaskQueueClient",
    "Task",
    "TaskQueueClient",
    "Tls",
    "__version__",
]
