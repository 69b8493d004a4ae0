"""Hold the state of one attempt at a job in this worker, and make the report of its end."""

from __future__ import annotations

import asyncio
import enum
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MAX_ERROR_BYTES, Assignment, Transition, bounded
from jobqueue.core.lifecycle import Move
from jobqueue.core.progress import Progress
from jobqueue.core.retry import Backoff
from jobqueue.tasks.context import (
    Abort,
    Completions,
    Context,
    PlainFailure,
    RetryLater,
    UnknownTask,
)
from jobqueue.tasks.task import DEFAULT_OPTIONS, TaskDefinition, TaskOptions
from jobqueue.worker.log import NOT_COMMITTED
from jobqueue.worker.slots import WaitingSlots

_MAX_MESSAGE_BYTES = 4 * 1024
_MAX_CAUSES_BYTES = 3 * 1024
_MAX_CAUSE_BYTES = 512
_FRAMES = 10
_LINKS = 5


class Stop(enum.Enum):
    """Names the reasons to stop a running attempt."""

    CANCELLED = "cancelled"  # on the server's request; the end is reported as a cancel
    TIMED_OUT = "timed out"  # reported already, at the deadline
    LOST = "lease lost"  # the server accepts no report of the attempt any more
    SHUTDOWN = "shutdown"  # the worker stops; the server will reclaim the job


_OVER = frozenset({Stop.TIMED_OUT, Stop.LOST})


@dataclass(slots=True, eq=False, repr=False)
class Execution:
    """Holds the state of one attempt.

    Only the event loop changes it, except where a comment says otherwise.
    """

    assignment: Assignment
    definition: TaskDefinition | None  # None: an external program
    executor: Executor
    received: float
    waiting: WaitingSlots
    announced: bool = False  # True if its start was reported before it began
    begun: float = 0.0  # monotonic; 0 = not yet. A thread writes it for its own job
    ended: bool = False  # True if its slot is free
    reported: bool = False  # True if the report of its end was given to the outbox
    start_unsure: bool = False  # True if the answer to the report of its start was lost
    stop: Stop | None = None  # read by threads
    context: Context | None = None  # written by threads
    timer: asyncio.TimerHandle | None = None
    handle: Any = None  # private to the executor
    error: BaseException | None = None  # raised by the handler; None after it is logged
    batch: RunningBatch | None = None  # the call of the handler that runs this job with others
    asked_for_retry: bool = False  # True if the handler raised ``RetryLater``
    logs_trace: bool = True  # False if another attempt's line shows the same traceback
    completions: Completions | None = None  # for its context
    # True once its result was about to be written in a transaction of its handler. Its end is then
    # reported as a failure, which the server refuses if the transaction was committed.
    completing: bool = False

    def log_fields(self) -> Mapping[str, Any]:
        """Return the fields that every log line about this attempt has."""
        job = self.assignment
        return {"job_id": job.id, "type": job.type, "queue": job.queue, "attempt": job.attempt}

    def waiting_for(self, queue: str | None) -> AbstractContextManager[None]:
        """Record that this attempt's handler waits for a job of the queue during the block."""
        return self.waiting.waits(self.assignment.lease, queue)

    @property
    def over(self) -> bool:
        """Return True if the attempt timed out or lost its lease. Its function may still run."""
        return self.stop in _OVER

    @property
    def timeout(self) -> float | None:
        """Return the job's timeout in seconds, else its task's timeout, else None.

        In a batch, this is the shortest timeout of its jobs.
        """
        return self.own_timeout if self.batch is None else self.batch.timeout

    @property
    def own_timeout(self) -> float | None:
        """Return the timeout that the job would have if it ran alone."""
        if self.assignment.timeout is not None or self.definition is None:
            return self.assignment.timeout
        return self.definition.options.timeout

    def retry_wait(self) -> float | None:
        """Return the task's own delay before the next retry, in seconds.

        None means that the queue's settings decide.
        """
        backoff = None if self.definition is None else self.definition.options.backoff
        made = self.assignment.retry_count
        if isinstance(backoff, Backoff):
            return backoff.delay(made)
        return backoff[min(made, len(backoff) - 1)] if backoff else None

    def expired(self, now: float) -> bool:
        """Return True if the job's TTL has ended at ``now``, so that the attempt must not start."""
        limit = self.assignment.expires_in
        return limit is not None and now - self.received >= limit

    def make_context(self, on_progress: Callable[[int, Progress], None]) -> Context:
        """Create the context for the handler. ``on_progress`` is called with lease and progress."""
        job, timeout = self.assignment, self.timeout
        context = Context(
            job_id=job.id,
            queue=job.queue,
            type=job.type,
            attempt=job.attempt,
            retry_count=job.retry_count,
            max_retries=job.max_retries,
            labels=job.labels,
            payload=job.payload,
            deadline=None if timeout is None else self.begun + timeout,
            on_progress=partial(on_progress, job.lease),
            lease=job.lease,
            completions=self.completions,
        )
        self.context = context
        if self.stop is not None:  # the attempt was stopped before it had a context
            context.request_cancel()
        return context

    def ran_for(self) -> float:
        """Return the seconds since the handler began."""
        return time.monotonic() - self.begun

    def interrupt(self, why: Stop) -> None:
        """Stop the handler for this reason, as far as its executor can stop it."""
        self.stop = why
        if self.context is not None:
            self.context.request_cancel()
        self.executor.interrupt(self)


class RunningBatch(Protocol):
    """One call of a batch handler, as the attempts in it see the call."""

    @property
    def timeout(self) -> float | None:
        """Return the shortest timeout of the jobs in the batch, or None if none has a timeout."""

    @property
    def size(self) -> int:
        """Return the number of jobs in the batch."""


class Executor:
    """Runs handlers in one way, for example in threads. Calls its host on the event loop."""

    shares_fate: ClassVar[bool] = False  # a crash of a handler kills the worker
    may_overlook_cancel: ClassVar[bool] = False  # a cancel only sets a flag for the handler

    def submit(self, execution: Execution) -> None:
        """Start the handler; tell the host when it begins and when it has ended."""
        raise NotImplementedError

    def withdraw(self, execution: Execution) -> bool:
        """Prevent the start of an attempt; return False if it may start nevertheless."""
        return True

    def interrupt(self, execution: Execution) -> None:
        """Stop the handler, as far as possible. The reason is ``execution.stop``."""

    async def close(self) -> None:
        """Kill the running handlers that can be killed, and release all resources."""


class Host(Protocol):
    """Receives the starts, the progress and the ends of handlers from executors."""

    def begin(self, execution: Execution) -> bool:
        """Record that the handler is about to run; return False if it must not run any more."""
        ...

    def begun(self, execution: Execution) -> None:
        """Record that the handler has begun to run in another thread."""
        ...

    def advanced(self, lease: int, progress: Progress) -> None:
        """Record progress of the attempt. Any thread may call this method."""
        ...

    async def completing(self, execution: Execution, needs_start: bool) -> None:
        """Record that the attempt's result is about to be written in its handler's transaction.

        If ``needs_start`` is True, return after the start of the attempt is stored.
        """
        ...

    def ended(self, execution: Execution, report: Transition) -> None:
        """Send the report of the handler's end to the server, and free its slot."""
        ...


class Endings:
    """Makes the reports about the ends of attempts."""

    def __init__(self, max_result_bytes: int) -> None:
        self.max_result_bytes = max_result_bytes

    def returned(self, execution: Execution, value: Any) -> Transition:
        """Return a report of success with the value that the handler returned.

        The report is a failure if the value cannot be encoded or is too large.
        """
        assert execution.definition is not None
        try:
            result = execution.definition.encode_result(value)
        except InvalidArgument as error:
            return self.failed(execution, error.message, retryable=False)
        return self.succeeded(execution, result)

    def succeeded(self, execution: Execution, result: bytes | None) -> Transition:
        """Return a report of success with this encoded result, or of failure if it is too large."""
        job = execution.assignment
        if result is not None and len(result) > self.max_result_bytes:
            return self.failed(execution, too_large(len(result), self.max_result_bytes), False)
        return Transition.succeeded(job.seq, job.lease, result, execution.ran_for())

    def raised(self, execution: Execution, error: BaseException) -> Transition:
        """Return a report of the failure of a handler that raised this error."""
        execution.error = error
        return self.reported(execution, describe(error), kinds(error), retry_after(error))

    def reported(
        self, execution: Execution, error: str, kinds: Sequence[str], retry_after: float | None
    ) -> Transition:
        """Return a report of the failure of a handler, which may have run in another process.

        ``error`` is the text of the error. ``kinds`` names its class and the base classes.
        """
        task = execution.definition
        options = DEFAULT_OPTIONS if task is None else task.options
        execution.asked_for_retry = not _ASKED.isdisjoint(kinds)
        return self.failed(execution, error, may_retry(kinds, options), retry_after)

    def after_completing(self, execution: Execution, report: Transition) -> Transition:
        """Return the report for a handler whose result was written in a transaction of its own.

        It is a failure also if the handler returned: the server refuses it if the transaction was
        committed, because then the attempt has ended already.
        """
        if report.move is not Move.SUCCEED:
            return report
        return self.failed(execution, NOT_COMMITTED)

    def timed_out(self, execution: Execution) -> Transition:
        """Return a report that the attempt has run longer than its timeout."""
        job = execution.assignment
        text = f"timed out after {execution.timeout:g} s"
        if execution.batch is not None and execution.timeout != execution.own_timeout:
            text += f", the shortest timeout of {execution.batch.size} jobs in one batch"
        return Transition.timed_out(
            job.seq, job.lease, text, execution.ran_for(), execution.retry_wait()
        )

    def cancelled(self, execution: Execution, report: Transition, unaware: bool) -> Transition:
        """Return the final report of a handler that was told to cancel.

        ``report`` describes how the handler ended. ``unaware`` is True if the handler may not have
        noticed the cancel. If such a handler succeeded, its success is reported.
        """
        job, context = execution.assignment, execution.context
        noticed = context is not None and context.cancel_noticed
        if report.move is Move.SUCCEED and unaware and not noticed:
            return report
        return Transition.cancel_acknowledged(job.seq, job.lease, report.ran_for)

    def failed(
        self,
        execution: Execution,
        error: str,
        retryable: bool = True,
        retry_after: float | None = None,
    ) -> Transition:
        """Return a report of a failure with this error text.

        ``retry_after`` None means the delay that the task or its queue defines.
        """
        job = execution.assignment
        if retry_after is None and retryable:
            retry_after = execution.retry_wait()
        return Transition.failed(
            job.seq,
            job.lease,
            error,
            retryable=retryable,
            retry_after=retry_after,
            ran_for=execution.ran_for(),
        )


def too_large(size: int, limit: int) -> str:
    """Return the error text for a result with ``size`` bytes."""
    return f"result: {size} bytes, more than the {limit} allowed"


def kinds(error: BaseException) -> list[str]:
    """Return the names of an error's class and of its base classes.

    Names are used because another process cannot send classes.
    """
    return _names(type(error).__mro__)


def may_retry(kinds: Sequence[str], options: TaskOptions) -> bool:
    """Return True if a job is retried after an error whose classes have these names.

    ``Abort``, ``RetryLater`` and ``InvalidArgument`` override the options of the task.
    """
    if not _FINAL.isdisjoint(kinds):
        return False
    if not _ASKED.isdisjoint(kinds):
        return True
    if not set(_names(options.abort_on)).isdisjoint(kinds):
        return False
    return options.retry_on is None or not set(_names(options.retry_on)).isdisjoint(kinds)


def _names(classes: Iterable[type]) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in classes]


_FINAL = frozenset(_names((Abort, InvalidArgument)))
_ASKED = frozenset(_names((RetryLater,)))


def retry_after(error: BaseException) -> float | None:
    """Return the delay in seconds that the handler requested by raising ``RetryLater``, or None."""
    return error.after if isinstance(error, RetryLater) else None


def describe(error: BaseException) -> str:
    """Return an error as text: its type and message, then the innermost frames of the handler.

    The causes of the error follow in the same form.
    """
    if isinstance(error, PlainFailure):
        return bounded(_message(error), _MAX_MESSAGE_BYTES)
    head = _head(error, _MAX_MESSAGE_BYTES)
    if isinstance(error, UnknownTask | InvalidArgument):
        return head  # without frames
    causes = bounded("".join(f"\n{link}" for link in _causes(error)), _MAX_CAUSES_BYTES)
    if isinstance(error, Abort | RetryLater):
        return head + causes  # raised on purpose: without frames
    text = _frames(error, skip=1)  # the first frame is the executor's
    room = MAX_ERROR_BYTES - len(head.encode()) - len(causes.encode()) - 1
    tail = text.encode(errors="replace")[-room:].decode(errors="ignore")
    return f"{head}\n{tail}{causes}" if tail else head + causes


def _causes(error: BaseException) -> Iterator[str]:
    """Yield the causes of an error as text, the direct cause first."""
    seen = {id(error)}
    while len(seen) <= _LINKS:
        how, cause = "caused by", error.__cause__
        if cause is None and not error.__suppress_context__:
            how, cause = "while handling", error.__context__
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield f"{how} {_head(cause, _MAX_CAUSE_BYTES)}\n{_frames(cause)}".rstrip()
        error = cause


def _head(error: BaseException, limit: int) -> str:
    kind, message = type(error).__qualname__, _message(error)
    return bounded(f"{kind}: {message}" if message else kind, limit)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _frames(error: BaseException, skip: int = 0) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[skip:][-_FRAMES:]).rstrip()
