"""Implement the blocking client, for Django, Flask and scripts.

Each blocking call runs the asynchronous call on an event loop in a background thread, and waits for
the result in the caller's thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from jobqueue.client.handle import JobHandle
from jobqueue.client.tasks import Submitting, Task
from jobqueue.core.bridge import Bridge, run_here
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import Cancellation, Event, Job

if TYPE_CHECKING:
    from jobqueue.client.app import JobQueue

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class SyncJob(Generic[R_co]):
    """A handle of one job, like ``JobHandle``, whose calls block the caller's thread."""

    def __init__(self, bridge: Bridge, handle: JobHandle[R_co]) -> None:
        self._bridge = bridge
        self._handle = handle

    def __repr__(self) -> str:
        return f"<SyncJob {self.id}>"

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def created(self) -> bool:
        """Return False if an earlier submit with the idempotency or unique key created the job."""
        return self._handle.created

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job's end, and return the result of its handler.

        Raises JobFailed if the job ends without a result. Raises DeadlineExceeded if the job has
        not ended after ``timeout`` seconds; the job itself goes on.
        """
        return self._bridge.run(self._handle.result(timeout))

    def status(self) -> Job:
        """Return the job's current record."""
        return self._bridge.run(self._handle.status())

    def cancel(self) -> Cancellation:
        """Cancel the job: at once if it is not running, else by a request to its worker."""
        return self._bridge.run(self._handle.cancel())

    def retry(self) -> Job:
        """Move a FAILED or DEAD_LETTERED job back to PENDING, and reset its retry counter."""
        return self._bridge.run(self._handle.retry())

    def events(self) -> Iterator[Event]:
        """Yield the job's past transitions, then each new transition, until the job ends."""
        events = self._handle.events()

        async def step() -> Event | None:
            return await anext(events, None)

        with self._bridge.kept_open():
            try:
                while (event := self._bridge.run(step())) is not None:
                    yield event
            finally:
                if isinstance(events, AsyncGenerator):
                    self._bridge.run_if_open(events.aclose())


class SyncQueue:
    """The blocking client of an app. Threads and forked processes may share it.

    The backend is closed when the last ``with app.sync() as q:`` block ends. A web application may
    keep one ``q = app.sync()`` without a block; then the exit of the process closes the backend.
    """

    def __init__(self, bridge: Bridge, app: JobQueue) -> None:
        self._bridge = bridge
        self._app = app

    @overload
    def submit(
        self,
        task: Task[Any, Callable[..., Submitting[R]]],
        /,
        *args: Any,
        connection: object,
        **kwargs: Any,
    ) -> SyncJob[R]: ...
    @overload
    def submit(
        self, task: Task[Any, Callable[P, Submitting[R]]], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJob[R]: ...
    def submit(self, task: Task[Any, Any], /, *args: Any, **kwargs: Any) -> SyncJob[Any]:
        """Submit a call of a task as a job, like ``q.submit(send, "a@b.c", "hello")``.

        With ``connection=``, the job is part of the transaction on the user's own connection, as
        in ``task.submit``.
        """
        _check_task(task)
        connection = task.take_connection(kwargs)
        if connection is None:
            handle = self.run(task.submit(*args, **kwargs))
        else:
            spec = task.spec(*args, **kwargs)
            sender = self._app.sender
            handle = run_here(sender.send(spec, task.decode, connection, self._blocking))
        return SyncJob(self._bridge, handle)

    def submit_many(
        self,
        task: Task[Any, Callable[..., Submitting[R]]],
        calls: Iterable[tuple[Any, ...]],
        *,
        connection: object = None,
    ) -> list[SyncJob[R]]:
        """Submit many calls of a task as jobs; each call is a tuple of arguments.

        ``connection`` is as in ``submit``.
        """
        _check_task(task)
        connection = task.connection_of(connection)
        if connection is None:
            handles = self.run(task.submit_many(calls))
        else:
            specs = task.specs(calls)
            sender = self._app.sender
            handles = run_here(sender.send_many(specs, task.decode, connection, self._blocking))
        return [SyncJob(self._bridge, handle) for handle in handles]

    async def _blocking(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        # The caller's connection belongs to the caller's thread, and the backend to another loop.
        return self._bridge.run(coroutine)

    def job(self, job_id: str) -> SyncJob[Any]:
        """Return the handle of a job that was submitted earlier."""
        return SyncJob(self._bridge, self._app.job(job_id))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the app, and return its result.

        Example: ``q.run(app.operator.list_queues())``.
        """
        return self._bridge.run(coroutine)

    def close(self) -> None:
        """Close the backend that the blocking client has opened."""
        self._bridge.close()

    def __enter__(self) -> SyncQueue:
        self._bridge.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._bridge.leave()


def _check_task(task: object) -> None:
    if not hasattr(task, "submit"):
        shown = getattr(task, "__name__", None) or repr(task)
        raise InvalidArgument("task", f"{shown} is not a task: decorate it with @app.task")
