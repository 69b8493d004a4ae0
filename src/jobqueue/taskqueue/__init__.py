"""Export the types that ``TaskQueueClient`` accepts and returns, and ``owner_index``."""

from jobqueue.taskqueue.client.values import Deadlines, JobPage, JobState
from jobqueue.taskqueue.components.model import Canceled, Submitted
from jobqueue.taskqueue.components.model import Envelope as JobResult
from jobqueue.taskqueue.components.model import Sort as JobSort
from jobqueue.taskqueue.components.model import Spec as JobSpec
from jobqueue.taskqueue.components.model import Status as JobStatus
from jobqueue.taskqueue.components.model import Summary as JobSummary
from jobqueue.taskqueue.components.ownership import owner_index

__all__ = [
    "Canceled",
    "Deadlines",
    "JobPage",
    "JobResult",
    "JobSort",
    "JobSpec",
    "JobState",
    "JobStatus",
    "JobSummary",
    "Submitted",
    "owner_index",
]
