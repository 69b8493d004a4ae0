"""What ``TaskQueueClient`` takes and returns: the messages of ``taskqueue.v1`` as plain objects."""

from jobqueue.client.taskqueue.answers import JobPage, JobState
from jobqueue.client.taskqueue.deadlines import Deadlines
from jobqueue.services.model import Canceled, Submitted
from jobqueue.services.model import Envelope as JobResult
from jobqueue.services.model import Sort as JobSort
from jobqueue.services.model import Spec as JobSpec
from jobqueue.services.model import Status as JobStatus
from jobqueue.services.model import Summary as JobSummary
from jobqueue.services.owners import owner_index

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
