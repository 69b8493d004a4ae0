"""The way of a job from the caller to the backend: queues made, batches cut, refusals told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from jobqueue.client.handle import JobHandle, Port
from jobqueue.client.home import Home
from jobqueue.core.api import Backend
from jobqueue.core.errors import (
    DeadlineExceeded,
    JobQueueError,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    Unavailable,
)
from jobqueue.core.job import Job, JobSpec, SubmitResult, SubmitStatus
from jobqueue.core.queue import QueueSpec
from jobqueue.worker.served import create_queues

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
        at_open: bool,
    ) -> None:
        """``at_open``: the store is opened here, and the declared queues are created with it.
        Behind a server the first submit creates them, if the caller may do that."""
        self._home = home
        self._port = port
        self._declared = declared
        self._at_open = at_open
        self._begin()

    def _begin(self) -> None:
        self._creating = asyncio.Lock()  # held on the backend's loop
        # Queues that need no creating: they exist, or an operator deleted them since, or this
        # caller may create none.
        self._settled: set[str] = set()
        self._may_create = True

    async def prepare(self, backend: Backend) -> None:
        """The backend was opened."""
        self._begin()
        if self._at_open:
            queues = self._declared()
            await create_queues(backend, queues.values())
            self._settled.update(queues)

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
        unsettled = {spec.queue for spec in specs} - self._settled
        if not unsettled or port is not self._home:  # inline mode sees to its own
            return await port.call(lambda backend: backend.submit(specs))
        if not self._declared().keys() <= self._settled:
            await self._home.call(self._create_declared)
        results = await port.call(lambda backend: backend.submit(specs))
        for spec, result in zip(specs, results, strict=True):
            if result.error is None:
                self._settled.add(spec.queue)
        return results

    async def _create_declared(self, backend: Backend) -> None:
        """Create the declared queues, once, however many callers come first together."""
        async with self._creating:
            queues = self._declared()
            new = [queue for name, queue in queues.items() if name not in self._settled]
            if not self._may_create or not new:
                return
            try:
                await create_queues(backend, new)
            except PermissionDenied:
                self._may_create = False
            except (Unavailable, OutcomeUnknown, DeadlineExceeded):
                return  # the submit may get through, or will say so
            self._settled.update(queues)

    def _hinted(self, error: JobQueueError, spec: JobSpec) -> JobQueueError:
        if not isinstance(error, NotFound):
            return error
        if not self._may_create:
            return NotFound(f"{error.message}; this caller is no operator and may not create it")
        if spec.queue not in self._declared():
            declare = f"or declare it: JobQueue(url, queues=[{spec.queue!r}])"
            return NotFound(f"{error.message}, {declare}")
        return error


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
