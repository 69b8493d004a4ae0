"""Accept the results of attempts inside transactions of their handlers (``Context.complete``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from jobqueue.core.bridge import run_here
from jobqueue.core.errors import Conflict, InvalidArgument
from jobqueue.core.job import Transition
from jobqueue.tasks.context import JobCancelled
from jobqueue.tasks.task import TaskDefinition
from jobqueue.worker.execution import Execution


class JoinedTransaction(Protocol):
    """A handler's transaction, which accepts the result of the handler's attempt."""

    @property
    def needs_start(self) -> bool:
        """Return True if the start of the attempt must be stored before its result."""

    async def complete(self, report: Transition) -> bool:
        """Accept the report of a success.

        Return False if a cancel of the job was requested. Raises Conflict if the attempt is over.
        On a connection that blocks, the call never suspends.
        """


class Transactions(Protocol):
    """Joins transactions on handlers' own connections."""

    @property
    def child_module(self) -> str:
        """Return the module of child processes, in which handlers can join transactions, too."""

    def join(self, connection: object, *, blocking: bool) -> JoinedTransaction:
        """Return the transaction on a connection.

        ``blocking`` is True in code without an event loop. Raises InvalidArgument for a connection
        that cannot be used there, or cannot have the worker's jobs.
        """


class NoTransactions:
    """Refuses all connections, for a worker that does not know where its jobs are stored."""

    child_module = "jobqueue.worker.child"

    def join(self, connection: object, *, blocking: bool) -> JoinedTransaction:
        raise InvalidArgument("connection", "this worker cannot join transactions")


class Completing:
    """Implements ``tasks.context.Completions``. Its subclasses know the attempts."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def complete(self, lease: int, result: Any, connection: object) -> None:
        joined = self._transactions.join(connection, blocking=False)
        report = self.success(lease, result)
        await self.begins(lease, joined.needs_start)
        _check(await joined.complete(report))

    def complete_blocking(self, lease: int, result: Any, connection: object) -> None:
        joined = self._transactions.join(connection, blocking=True)
        report = self.success(lease, result)
        self.begins_blocking(lease, joined.needs_start)
        _check(run_here(joined.complete(report)))

    def success(self, lease: int, result: Any) -> Transition:
        """Return the report of the attempt's success with this result.

        Raises InvalidArgument if the result cannot be encoded or is too large.
        """
        raise NotImplementedError

    async def begins(self, lease: int, needs_start: bool) -> None:
        """Record that the result is about to be written; store the attempt's start if needed.

        From then on, the attempt succeeds only if the transaction is committed.
        """
        raise NotImplementedError

    def begins_blocking(self, lease: int, needs_start: bool) -> None:
        """Do the same as ``begins``, in a thread without an event loop."""
        raise NotImplementedError


def _check(accepted: bool) -> None:
    if not accepted:
        raise JobCancelled("cancelled")


def encoded(definition: TaskDefinition, result: Any, limit: int) -> bytes | None:
    """Encode a result; raise InvalidArgument if it cannot be encoded or is too large."""
    raw = definition.encode_result(result)
    if raw is not None and len(raw) > limit:
        raise InvalidArgument("result", f"{len(raw)} bytes, more than the {limit} allowed")
    return raw


class LocalCompletions(Completing):
    """Accepts the results of handlers that run in the worker's process."""

    def __init__(
        self,
        transactions: Transactions,
        find: Callable[[int], Execution | None],
        begins: Callable[[Execution, bool], Awaitable[None]],
        worker_id: str,
        max_result_bytes: int,
    ) -> None:
        super().__init__(transactions)
        self._find = find  # returns the attempt with a lease, or None if the worker gave it up
        self._begins = begins
        self._worker_id = worker_id
        self._max_result_bytes = max_result_bytes
        self._loop = asyncio.get_running_loop()

    def _execution(self, lease: int) -> Execution:
        execution = self._find(lease)
        if execution is None or execution.ended:
            raise Conflict("this attempt is over; roll the transaction back")
        return execution

    def success(self, lease: int, result: Any) -> Transition:
        execution = self._execution(lease)
        assert execution.definition is not None
        raw = encoded(execution.definition, result, self._max_result_bytes)
        job = execution.assignment
        report = Transition.succeeded(job.seq, job.lease, raw, execution.ran_for())
        report.worker_id = self._worker_id
        return report

    async def begins(self, lease: int, needs_start: bool) -> None:
        await self._begins(self._execution(lease), needs_start)

    def begins_blocking(self, lease: int, needs_start: bool) -> None:
        begun = self.begins(lease, needs_start)
        asyncio.run_coroutine_threadsafe(begun, self._loop).result()
