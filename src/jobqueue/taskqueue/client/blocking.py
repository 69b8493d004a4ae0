"""Implement ``SyncTaskQueueClient``: a blocking ``TaskQueueClient`` for threads and scripts."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from jobqueue.access.tls import Tls
from jobqueue.core.bridge import Bridge
from jobqueue.taskqueue.client.client import TaskQueueClient
from jobqueue.taskqueue.client.values import Deadlines, JobPage, JobState
from jobqueue.taskqueue.components.model import Canceled, Envelope, Sort, Spec, Status, Submitted

T = TypeVar("T")

_INSTEAD = "use TaskQueueClient and `await` its calls"


class SyncTaskQueueClient:
    """A ``TaskQueueClient`` whose calls block. Threads may share a client.

    ``with SyncTaskQueueClient(...) as client:`` closes the client when the last such block ends. A
    web application may keep one client open all the time. The client closes its connections when
    the process exits, and before the process forks; parent and child then open new connections.
    """

    def __init__(
        self,
        gateway: str | None = None,
        nodes: Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        tls: Tls | bool = False,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._client = TaskQueueClient(
            gateway, nodes, api_key=api_key, tls=tls, deadlines=deadlines
        )
        self._bridge = Bridge(instead=_INSTEAD)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._client)[1:]}"

    def submit_job(
        self,
        spec: Spec | None = None,
        *,
        job_type: str | None = None,
        work_duration_ms: int = 0,
        payload_size_bytes: int = 0,
        labels: Mapping[str, str] | None = None,
        client_request_id: str = "",
    ) -> Submitted:
        """Submit a job, given as a ``JobSpec`` or as its fields."""
        return self._run(
            self._client.submit_job(
                spec,
                job_type=job_type,
                work_duration_ms=work_duration_ms,
                payload_size_bytes=payload_size_bytes,
                labels=labels,
                client_request_id=client_request_id,
            )
        )

    def get_job_status(self, job_id: str) -> JobState:
        """Return the current state of the job. NotFound means that the job does not exist."""
        return self._run(self._client.get_job_status(job_id))

    def get_job_result(self, job_id: str) -> Envelope | None:
        """Return the job's result with its output; None while the job has not ended."""
        return self._run(self._client.get_job_result(job_id))

    def cancel_job(self, job_id: str, reason: str = "") -> Canceled:
        """Cancel a queued job, or request that a running job ends."""
        return self._run(self._client.cancel_job(job_id, reason))

    def list_jobs(
        self,
        status_filter: Iterable[Status] = (),
        page_size: int = 0,
        page_token: str = "",
        sort: Sort = Sort.CREATED_AT_DESC,
        *,
        node: int = 0,
    ) -> JobPage:
        """Return one page of jobs. A client with ``nodes=`` lists the jobs of one node."""
        return self._run(
            self._client.list_jobs(status_filter, page_size, page_token, sort, node=node)
        )

    def wait_result(self, job_id: str, timeout: float | None = None) -> Envelope:
        """Wait until the job has a result, and return the result.

        DeadlineExceeded means that the job had no result after ``timeout`` seconds.
        """
        return self._run(self._client.wait_result(job_id, timeout))

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self._bridge.close()

    def __enter__(self) -> SyncTaskQueueClient:
        self._bridge.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._bridge.leave()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._bridge.run(call)
