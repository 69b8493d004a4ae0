"""Implement ``SyncTaskQueueClient``: a blocking ``TaskQueueClient`` for threads and scripts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from jobqueue.access.tls import Tls
from jobqueue.core.bridge import Bridge
from jobqueue.taskqueue.client.client import TaskQueueClient
from jobqueue.taskqueue.client.values import Deadlines

P = ParamSpec("P")
T = TypeVar("T")

_INSTEAD = "use TaskQueueClient and `await` its calls"


def _blocking(
    method: Callable[Concatenate[TaskQueueClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncTaskQueueClient, P], T]:
    """Create a method that runs a method of ``TaskQueueClient`` and blocks until its end."""

    @functools.wraps(method)
    def call(client: SyncTaskQueueClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._bridge.run(method(client._client, *args, **kwargs))

    return call


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

    submit_job = _blocking(TaskQueueClient.submit_job)
    get_job_status = _blocking(TaskQueueClient.get_job_status)
    get_job_result = _blocking(TaskQueueClient.get_job_result)
    cancel_job = _blocking(TaskQueueClient.cancel_job)
    list_jobs = _blocking(TaskQueueClient.list_jobs)
    wait_result = _blocking(TaskQueueClient.wait_result)

    def close(self) -> None:
        """Close the connections. The next call opens new ones."""
        self._bridge.close()

    def __enter__(self) -> SyncTaskQueueClient:
        self._bridge.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._bridge.leave()
