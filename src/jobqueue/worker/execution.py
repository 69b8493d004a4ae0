"""One attempt at a job while this worker holds it, and the report of its end."""

from __future__ import annotations

import asyncio
import enum
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MAX_ERROR_BYTES, Assignment, Transition, bounded
from jobqueue.core.lifecycle import Move
from jobqueue.core.progress import Progress
from jobqueue.core.retry import Backoff
from jobqueue.tasks.context import Abort, Context, PlainFailure, RetryLater, UnknownTask
from jobqueue.tasks.task import DEFAULT_OPTIONS, TaskDefinition, TaskOptions
from jobqueue.worker.slots import WaitingSlots

_MAX_MESSAGE_BYTES = 4 * 1024
_MAX_CAUSES_BYTES = 3 * 1024
_MAX_CAUSE_BYTES = 512
_FRAMES = 10
_LINKS = 5


class Stop(enum.Enum):
    """Why a running attempt is asked to stop."""

    CANCELLED = "cancelled"  # the server asks for it; the end is reported as a cancel
    TIMED_OUT = "timed out"  # reported already, at the deadline
    LOST = "lease lost"  # the server takes no report any more
    SHUTDOWN = "shutdown"  # the worker stops; the server will reclaim the job


_OVER = frozenset({Stop.TIMED_OUT, Stop.LOST})


class Execution:
    """The state of one attempt. Belongs to the loop, except where a comment says otherwise."""

    __slots__ = (
        "announced",
        "assignment",
        "begun",
        "context",
        "definition",
        "ended",
        "error",
        "executor",
        "handle",
        "received",
        "reported",
        "start_unsure",
        "stop",
        "timer",
        "waiting",
    )

    def __init__(
        self,
        assignment: Assignment,
        definition: TaskDefinition | None,
        executor: Executor,
        received: float,
        waiting: WaitingSlots,
    ) -> None:
        self.assignment = assignment
        self.definition = definition  # None: an external program
        self.executor = executor
        self.received = received
        self.announced = False  # its start was reported before it began
        self.begun = 0.0  # monotonic; 0 = not yet. A thread writes it for its own job
        self.ended = False  # the slot is free
        self.reported = False  # its end is on the way to the server
        self.start_unsure = False  # its start was reported, but the answer was lost
        self.stop: Stop | None = None  # read by threads
        self.context: Context | None = None  # written by threads
        self.timer: asyncio.TimerHandle | None = None
        self.handle: Any = None  # the executor's own
        self.error: BaseException | None = None  # what the handler raised, until it is logged
        self.waiting = waiting

    def log_fields(self) -> Mapping[str, Any]:
        job = self.assignment
        return {"job_id": job.id, "type": job.type, "queue": job.queue, "attempt": job.attempt}

    def waiting_for(self, queue: str | None) -> AbstractContextManager[None]:
        return self.waiting.waits(self.assignment.lease, queue)

    @property
    def over(self) -> bool:
        """The server has given the attempt up; its function may still run."""
        return self.stop in _OVER

    @property
    def timeout(self) -> float | None:
        """The job's timeout, or else its task's."""
        if self.assignment.timeout is not None or self.definition is None:
            return self.assignment.timeout
        return self.definition.options.timeout

    def retry_wait(self) -> float | None:
        """The task's own wait before the next retry, in seconds; None: the queue's."""
        backoff = None if self.definition is None else self.definition.options.backoff
        made = self.assignment.retry_count
        if isinstance(backoff, Backoff):
            return backoff.delay(made)
        return backoff[min(made, len(backoff) - 1)] if backoff else None

    def expired(self, now: float) -> bool:
        """The TTL ended before the start."""
        limit = self.assignment.expires_in
        return limit is not None and now - self.received >= limit

    def make_context(self, on_progress: Callable[[int, Progress], None]) -> Context:
        """Make the handler's context. ``on_progress`` gets the lease and the progress."""
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
        )
        self.context = context
        if self.stop is not None:  # the stop came before there was a context
            context.request_cancel()
        return context

    def ran_for(self) -> float:
        """Return the seconds since the handler began."""
        return time.monotonic() - self.begun

    def interrupt(self, why: Stop) -> None:
        """Ask the handler to stop."""
        self.stop = why
        if self.context is not None:
            self.context.request_cancel()
        self.executor.interrupt(self)


class Executor:
    """Runs handlers in one way. Calls the host on the loop."""

    def submit(self, execution: Execution) -> None:
        """Run the handler: call ``host.begin`` or ``host.begun``, then ``host.ended``."""
        raise NotImplementedError

    def withdraw(self, execution: Execution) -> bool:
        """Take back an attempt that has not begun; False if it can begin nevertheless."""
        return True

    def interrupt(self, execution: Execution) -> None:
        """Stop the handler as far as this executor can. ``execution.stop`` has the reason."""

    async def close(self) -> None:
        """Release everything, and kill what can be killed."""


class Host(Protocol):
    """What executors tell the runtime."""

    def begin(self, execution: Execution) -> bool:
        """The handler is about to run; False if it must not run any more."""
        ...

    def begun(self, execution: Execution) -> None:
        """The handler has begun to run, in another thread."""
        ...

    def advanced(self, lease: int, progress: Progress) -> None:
        """The attempt made progress. Called from any thread."""
        ...

    def ended(self, execution: Execution, report: Transition) -> None:
        """The handler has ended, and its slot is free."""
        ...


class Endings:
    """Makes the report of a handler's end."""

    def __init__(self, max_result_bytes: int) -> None:
        self.max_result_bytes = max_result_bytes

    def returned(self, execution: Execution, value: Any) -> Transition:
        assert execution.definition is not None
        try:
            result = execution.definition.encode_result(value)
        except InvalidArgument as error:
            return self.failed(execution, error.message, retryable=False)
        return self.succeeded(execution, result)

    def succeeded(self, execution: Execution, result: bytes | None) -> Transition:
        """Report success, or failure if the result is too large."""
        job = execution.assignment
        if result is not None and len(result) > self.max_result_bytes:
            return self.failed(execution, too_large(len(result), self.max_result_bytes), False)
        return Transition.succeeded(job.seq, job.lease, result, execution.ran_for())

    def raised(self, execution: Execution, error: BaseException) -> Transition:
        execution.error = error
        return self.reported(execution, describe(error), kinds(error), retry_after(error))

    def reported(
        self, execution: Execution, error: str, kinds: Sequence[str], retry_after: float | None
    ) -> Transition:
        """Report an error of these kinds, raised here or in another process."""
        task = execution.definition
        options = DEFAULT_OPTIONS if task is None else task.options
        return self.failed(execution, error, may_retry(kinds, options), retry_after)

    def timed_out(self, execution: Execution) -> Transition:
        job = execution.assignment
        text = f"timed out after {execution.timeout:g} s"
        return Transition.timed_out(
            job.seq, job.lease, text, execution.ran_for(), execution.retry_wait()
        )

    def cancelled(self, execution: Execution, report: Transition, unaware: bool) -> Transition:
        """Report the end of a handler that was asked to cancel; ``report`` is its own end.

        An ``unaware`` handler may have overlooked the cancel: then its success counts.
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
    return f"result: {size} bytes, more than the {limit} allowed"


def retryable(error: BaseException, options: TaskOptions = DEFAULT_OPTIONS) -> bool:
    """True if another attempt could end differently, by the error and its task's options."""
    return may_retry(kinds(error), options)


def kinds(error: BaseException) -> list[str]:
    """Name an error's class and its bases. Another process reports names, not classes."""
    return _names(type(error).__mro__)


def may_retry(kinds: Sequence[str], options: TaskOptions) -> bool:
    """True if errors of these kinds are retried. Abort and RetryLater override the options."""
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
    """Return the delay that the handler asked for."""
    return error.after if isinstance(error, RetryLater) else None


def describe(error: BaseException) -> str:
    """Write an error as text: its type and message, then the innermost frames of the handler.

    Its causes follow in the same form.
    """
    if isinstance(error, PlainFailure):
        return bounded(_message(error), _MAX_MESSAGE_BYTES)
    head = _head(error, _MAX_MESSAGE_BYTES)
    if isinstance(error, UnknownTask | InvalidArgument):
        return head  # its message is enough
    causes = bounded("".join(f"\n{link}" for link in _causes(error)), _MAX_CAUSES_BYTES)
    if isinstance(error, Abort | RetryLater):
        return head + causes  # raised on purpose: its place does not matter
    text = _frames(error, skip=1)  # the first one is ours
    room = MAX_ERROR_BYTES - len(head.encode()) - len(causes.encode()) - 1
    tail = text.encode(errors="replace")[-room:].decode(errors="ignore")
    return f"{head}\n{tail}{causes}" if tail else head + causes


def _causes(error: BaseException) -> Iterator[str]:
    """Write the causes of an error, the nearest first, by ``__cause__`` and ``__context__``."""
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
