"""The way of a job from the caller to the backend: queues made, batches cut, refusals told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from jobqueue.client.handle import JobHandle, Port
from jobqueue.client.home import Home
from jobqueue.core.api import Backend
from jobqueue.core.errors import AlreadyExists, JobQueueError, NotFound
from jobqueue.core.job import Job, JobSpec, QueueSpec, SubmitResult, SubmitStatus

R = TypeVar("R")
Decode = Callable[[Job], Any]

# One request, in jobs and in payload bytes: well below what a server takes in one message.
BATCH_JOBS = 1000
BATCH_BYTES = 1024 * 1024


class BatchRefused(JobQueueError, Generic[R]):
    """Some jobs of a ``submit_many`` were refused. The accepted ones stand: see ``handles``.

    ``handles`` and ``errors`` have one entry for each job, in order: one of the two is None.
    """

    def __init__(
        self, handles: list[JobHandle[R] | None], errors: list[JobQueueError | None]
    ) -> None:
        refused = [(index, error) for index, error in enumerate(errors) if error is not None]
        index, first = refused[0]
        super().__init__(
            f"{len(refused)} of {len(errors)} jobs were refused, "
            f"the first at index {index}: {first}"
        )
        self.code = first.code
        self.handles = handles
        self.errors = errors


class Sender:
    """Submits specs through the port in use, and turns answers into handles."""

    def __init__(
        self,
        home: Home,
        port: Callable[[], Port],
        declared: Callable[[], dict[str, QueueSpec]],
        *,
        creates_queues: bool,
    ) -> None:
        self._home = home
        self._port = port
        self._declared = declared
        self._creates_queues = creates_queues
        self._created: set[str] = set()

    async def prepare(self, backend: Backend) -> None:
        """Make the declared queues, if the store is ours to make them in."""
        self._created = set()
        if self._creates_queues:
            for queue in self._declared().values():
                await self._create(backend, queue)

    async def send(self, spec: JobSpec, decode: Decode) -> JobHandle[Any]:
        """Submit one job."""
        port = self._port()
        (result,) = await self._deliver(port, [spec])
        if result.error is not None:
            raise self._hinted(result.error, spec)
        created = result.status is SubmitStatus.ACCEPTED
        return JobHandle(port, result.job_id, decode, created=created, queue=spec.queue)

    async def send_many(self, specs: Sequence[JobSpec], decode: Decode) -> list[JobHandle[Any]]:
        """Submit jobs in as few requests as their size allows; BatchRefused if one was refused."""
        port = self._port()
        handles: list[JobHandle[Any] | None] = []
        errors: list[JobQueueError | None] = []
        for batch in _batches(specs):
            try:
                results = await self._deliver(port, batch)
            except JobQueueError as error:
                if not handles:
                    raise
                # Earlier batches stand: their handles must reach the caller.
                rest = len(specs) - len(handles)
                raise BatchRefused(handles + [None] * rest, errors + [error] * rest) from error
            for spec, result in zip(batch, results, strict=True):
                refused = result.error is not None
                created = result.status is SubmitStatus.ACCEPTED
                handles.append(
                    None
                    if refused
                    else JobHandle(port, result.job_id, decode, created=created, queue=spec.queue)
                )
                errors.append(None if result.error is None else self._hinted(result.error, spec))
        if any(error is not None for error in errors):
            raise BatchRefused(handles, errors)
        return [handle for handle in handles if handle is not None]

    async def _deliver(self, port: Port, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        if self._creates_queues and any(spec.queue not in self._created for spec in specs):
            await self._create_late(port, {spec.queue for spec in specs} - self._created)
        return await port.call(lambda backend: backend.submit(specs))

    async def _create_late(self, port: Port, names: set[str]) -> None:
        """Make queues of tasks that were defined after the app was opened."""
        if port is not self._home:  # inline mode makes its own
            return
        declared = self._declared()
        for name in names & declared.keys():
            await self._create_at_home(declared[name])

    async def _create_at_home(self, queue: QueueSpec) -> None:
        await self._home.call(lambda backend: self._create(backend, queue))

    async def _create(self, backend: Backend, queue: QueueSpec) -> None:
        with contextlib.suppress(AlreadyExists):
            await backend.create_queue(queue)
        self._created.add(queue.name)

    def _hinted(self, error: JobQueueError, spec: JobSpec) -> JobQueueError:
        if not isinstance(error, NotFound) or not self._creates_queues:
            return error
        return NotFound(f"{error.message}, or declare it: JobQueue(url, queues=[{spec.queue!r}])")


def _batches(specs: Sequence[JobSpec]) -> Iterator[list[JobSpec]]:
    batch: list[JobSpec] = []
    size = 0
    for spec in specs:
        if batch and (len(batch) == BATCH_JOBS or size + len(spec.payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(spec)
        size += len(spec.payload)
    if batch:
        yield batch
