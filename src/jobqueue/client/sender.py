"""Submit jobs to the backend: create declared queues, divide batches, and explain refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from jobqueue.client.handle import JobHandle, Port
from jobqueue.client.shared_backend import SharedBackend
from jobqueue.connect.transactions import OwnTransactions, check_thread, holds_file
from jobqueue.core.api import Backend
from jobqueue.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
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
T = TypeVar("T")
Decode = Callable[[Job], Any]


class RunCoroutine(Protocol):
    """Runs a coroutine on the event loop of the app, and returns its result."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> Coroutine[Any, Any, T]: ...


async def awaited(coroutine: Coroutine[Any, Any, T], /) -> T:
    return await coroutine


async def _nothing(backend: Backend) -> None:
    return None


# The limits of one request, in jobs and payload bytes. They are well below a server's limits.
BATCH_JOBS = 1000
BATCH_BYTES = 1024 * 1024


class BatchRefused(JobQueueError, Generic[R]):
    """Reports that some jobs of a ``submit_many`` were refused.

    ``handles`` and ``errors`` have one entry for each job, in order. ``handles`` has None for a
    refused job, and ``errors`` has None for an accepted job.
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
    """Submits specs through the current port, and returns handles of the created jobs."""

    def __init__(
        self,
        shared: SharedBackend,
        port: Callable[[], Port],
        declared: Callable[[], dict[str, QueueSpec]],
        transactions: OwnTransactions,
        *,
        at_open: bool,
    ) -> None:
        """Create a sender.

        If ``at_open`` is True, this process opens a store, and ``prepare`` creates the declared
        queues. Otherwise the first submit creates them, if the caller has the role operator.
        """
        self._shared = shared
        self._port = port
        self._declared = declared
        self._transactions = transactions
        self._at_open = at_open
        self._begin()

    def _begin(self) -> None:
        self._creating = asyncio.Lock()  # held on the backend's loop
        # Queues that need no creation: they exist, an operator deleted them after their creation,
        # or the caller may not create queues.
        self._settled: set[str] = set()
        self._may_create = True

    async def prepare(self, backend: Backend) -> None:
        """Create the declared queues in a new backend, if this process itself opens the store."""
        self._begin()
        if self._at_open:
            queues = self._declared()
            await create_queues(backend, queues.values())
            self._settled.update(queues)

    async def send(
        self, spec: JobSpec, decode: Decode, connection: object = None, run: RunCoroutine = awaited
    ) -> JobHandle[Any]:
        """Submit one job and return its handle; raise the error if the job is refused.

        With ``connection``, the job is written in the transaction of a user's connection. ``run``
        runs the backend's part of it, for callers in threads without an event loop.
        """
        port = self._port()
        (result,) = await (
            self._deliver(port, [spec])
            if connection is None
            else self._deliver_within(port, [spec], connection, run)
        )
        if result.error is not None:
            raise self._hinted(result.error, spec)
        return _handle(port, spec, result, decode)

    async def send_many(
        self,
        specs: Sequence[JobSpec],
        decode: Decode,
        connection: object = None,
        run: RunCoroutine = awaited,
    ) -> list[JobHandle[Any]]:
        """Submit jobs in as few requests as their size allows, and return their handles.

        Raises BatchRefused if any job was refused. ``connection`` and ``run`` are as in ``send``.
        """
        port = self._port()
        handles: list[JobHandle[Any] | None] = []
        errors: list[JobQueueError | None] = []
        for batch in _batches(specs):
            try:
                results = await (
                    self._deliver(port, batch)
                    if connection is None
                    else self._deliver_within(port, batch, connection, run)
                )
            except JobQueueError as error:
                if not handles:
                    raise
                # The jobs of earlier batches were submitted: the caller must get their handles.
                rest = len(specs) - len(handles)
                raise BatchRefused(handles + [None] * rest, errors + [error] * rest) from error
            for spec, result in zip(batch, results, strict=True):
                made = result.error is None
                handles.append(_handle(port, spec, result, decode) if made else None)
                errors.append(None if result.error is None else self._hinted(result.error, spec))
        if any(error is not None for error in errors):
            raise BatchRefused(handles, errors)
        return [handle for handle in handles if handle is not None]

    async def _deliver_within(
        self, port: Port, specs: Sequence[JobSpec], connection: object, run: RunCoroutine
    ) -> list[SubmitResult]:
        """Submit jobs in a user's transaction. If a declared queue is missing, create it first."""
        if any(spec.unique is not None for spec in specs):
            # Whether another job is in the way would be known at the commit only.
            raise InvalidArgument(
                "unique",
                "cannot be given together with connection=: submit the job without unique, or"
                " after the commit; key= makes a repeated submit one job",
            )
        if port is not self._shared:  # inline mode has its jobs in memory, and runs them at once
            return await run(self._deliver(port, specs))
        own = self._transactions.recognised(connection)
        check_thread(own, blocking=run is not awaited)
        may_write = not holds_file(own)
        if self._at_open and self._shared.loop is None:  # to create schema and declared queues
            if not may_write:
                raise InvalidArgument(
                    "connection",
                    "its transaction locks the file, so the app cannot open it: open the app before"
                    " the transaction begins, as `await app.open()` or `q.run(app.open())`",
                )
            await run(self._shared.call(_nothing))
        results = await self._transactions.submit(own, specs)
        missing = [n for n, result in enumerate(results) if isinstance(result.error, NotFound)]
        new = {specs[n].queue for n in missing} & self._declared().keys() - self._settled
        if new and may_write:
            await run(self._shared.call(self._create_declared))
            again = await self._transactions.submit(own, [specs[n] for n in missing])
            for n, result in zip(missing, again, strict=True):
                results[n] = result
        return results

    async def _deliver(self, port: Port, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        unsettled = {spec.queue for spec in specs} - self._settled
        if not unsettled or port is not self._shared:  # inline mode creates its own
            return await port.call(lambda backend: backend.submit(specs))
        if not self._declared().keys() <= self._settled:
            await self._shared.call(self._create_declared)
        results = await port.call(lambda backend: backend.submit(specs))
        for spec, result in zip(specs, results, strict=True):
            if result.error is None:
                self._settled.add(spec.queue)
        return results

    async def _create_declared(self, backend: Backend) -> None:
        """Create the declared queues once, even if several tasks call this at the same time."""
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
                return  # the submit may succeed, or will raise the error
            self._settled.update(queues)

    def _hinted(self, error: JobQueueError, spec: JobSpec) -> JobQueueError:
        if not isinstance(error, NotFound):
            return error
        if not self._may_create:
            return NotFound(
                f"{error.message}; this caller may not create queues: it lacks the role operator"
            )
        if spec.queue not in self._declared():
            declare = f"or declare it: JobQueue(url, queues=[{spec.queue!r}])"
            return NotFound(f"{error.message}, {declare}")
        return error


def _handle(port: Port, spec: JobSpec, result: SubmitResult, decode: Decode) -> JobHandle[Any]:
    created = result.status is SubmitStatus.ACCEPTED
    return JobHandle(port, result.job_id, decode, created=created, queue=spec.queue)


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
