"""Write the worker's log: lines with the worker's id, and one line for each attempt that ends."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jobqueue import logs
from jobqueue.core.job import Assignment, Transition
from jobqueue.core.lifecycle import Move, Reason, State, after_failure
from jobqueue.core.observer import Observer
from jobqueue.tasks import codec
from jobqueue.tasks.context import Abort, RetryLater, UnknownTask

if TYPE_CHECKING:
    from jobqueue.worker.execution import Execution

log = logging.getLogger("jobqueue.worker")

NOT_COMMITTED = "ctx.complete() was called, but its transaction was not committed"

_FIELDS = ("job_id", "type", "queue", "attempt", "duration", "worker_id")
_DELIBERATE = (Abort, RetryLater, UnknownTask)  # logged without a traceback
_CAUSE = {Move.FAIL: Reason.HANDLER_FAILED, Move.TIME_OUT: Reason.TIMED_OUT}


class WorkerLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the worker's id to the fields of each log line."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(log)
        self.worker_id = worker_id

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**kwargs.get("extra", {}), "worker_id": self.worker_id}
        return msg, kwargs


class AttemptFigures:
    """Counts the attempts of one worker by queue, with metrics that servers have, too."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Count jobs that were assigned to this worker."""
        for queue, count in Counter([job.queue for job in assignments]).items():
            self._observer.entered(queue, State.ASSIGNED, count)

    def ended(
        self,
        held: Mapping[int, Execution],
        reports: Sequence[Transition],
        accepted: Sequence[bool],
    ) -> None:
        """Count attempts whose final report was answered. ``held`` has the attempts by lease."""
        counts: Counter[tuple[str, State]] = Counter()
        ran: dict[str, list[float]] = {}
        for report, applied in zip(reports, accepted, strict=False):
            execution = held.get(report.lease or 0)
            if execution is None or report.move is Move.HAND_BACK:
                continue
            if not applied and not execution.completing:
                continue
            queue = execution.assignment.queue
            done = report.move is Move.SUCCEED or not applied
            counts[queue, State.DONE if done else State.FAILED] += 1
            if report.ran_for is not None:
                ran.setdefault(queue, []).append(report.ran_for)
        for (queue, state), count in counts.items():
            self._observer.entered(queue, state, count)
        for queue, seconds in ran.items():
            self._observer.ran(queue, seconds)


class AttemptLog:
    """Writes one log line for the end of each attempt.

    A failure that is retried is a warning. A failure that makes the job a dead letter is an error.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id

    def ended(self, execution: Execution, report: Transition) -> None:
        """Log the end of an attempt, which ``report`` describes."""
        if report.move is Move.SUCCEED:
            if log.isEnabledFor(logging.DEBUG):
                self._write(logging.DEBUG, execution, "succeeded", report.ran_for)
        elif report.move is Move.ACKNOWLEDGE_CANCEL:
            self._write(logging.INFO, execution, "was cancelled", report.ran_for)
        elif report.move is Move.HAND_BACK:
            if log.isEnabledFor(logging.DEBUG):
                self._write(logging.DEBUG, execution, "is handed back before its start", None)
        else:
            self._failed(execution, report, execution.error)

    def completed(self, execution: Execution, report: Transition) -> None:
        """Log the end of an attempt whose result was accepted in its handler's transaction.

        If the handler raised an error after that, the error changes nothing any more.
        """
        if report.error != NOT_COMMITTED:
            told = "has ended; its handler failed after its result was accepted"
            first = report.error.partition("\n")[0]
            self._write(logging.WARNING, execution, told, report.ran_for, f": {first}")
        elif log.isEnabledFor(logging.DEBUG):
            self._write(logging.DEBUG, execution, "succeeded", report.ran_for)

    def result_refused(self, execution: Execution, report: Transition) -> None:
        """Log that the server refused the attempt's result, so that the attempt has failed."""
        self._failed(execution, report, None)

    def lease_lost(self, execution: Execution) -> None:
        """Log that the server has given the attempt up while its handler runs."""
        told = "was given up by the server (its lease is gone); it is stopped, its result ignored"
        self._write(logging.WARNING, execution, told, execution.ran_for())

    def end_not_accepted(self, execution: Execution, report: Transition) -> None:
        """Log that the server had given the attempt up before its end was reported."""
        told = "ended, but its result is ignored: the server had given the attempt up"
        self._write(logging.WARNING, execution, told, report.ran_for)

    def abandoned(self, execution: Execution) -> None:
        """Log that the worker stops before the attempt ends."""
        told = "did not end in time; the worker abandons it, and the server retries it if it can"
        self._write(logging.WARNING, execution, told, execution.ran_for())

    def _failed(
        self, execution: Execution, report: Transition, error: BaseException | None
    ) -> None:
        job = execution.assignment
        # The server decides with the same function and the same numbers.
        given_up = after_failure(
            _CAUSE[report.move],
            retry_count=job.retry_count,
            max_retries=job.max_retries,
            worker_deaths=0,
            poison_after=0,
            cancel_requested=False,
            retryable=report.retryable,
        )
        if given_up is None:
            left = job.max_retries - job.retry_count
            when = "" if report.retry_after is None else f" in {report.retry_after:g} s"
            level = logging.WARNING
            next_ = f"it will be retried{when} ({left} {'retry' if left == 1 else 'retries'} left)"
        else:
            level = logging.ERROR
            why = "no retries left" if given_up is Reason.RETRIES_EXHAUSTED else "not retryable"
            next_ = f"it is a dead letter now ({why})"
        first, _, rest = report.error.partition("\n")
        head = "timed out" if report.move is Move.TIME_OUT else "failed"
        why = f"; {next_}" if report.move is Move.TIME_OUT else f"; {next_}: {first}"
        trace, text = (_handlers_part(error), rest) if execution.logs_trace else (None, "")
        self._write(level, execution, head, report.ran_for, why, error, trace, text)

    def _write(
        self,
        level: int,
        execution: Execution,
        told: str,
        ran_for: float | None,
        then: str = "",
        error: BaseException | None = None,
        trace: TracebackType | None = None,
        text: str = "",
    ) -> None:
        job = execution.assignment
        kind = job.type or (execution.definition.name if execution.definition else "")
        after = "" if ran_for is None else f" after {ran_for:.3f} s"
        extra: dict[str, Any] = {
            **execution.log_fields(),
            "duration": None if ran_for is None else round(ran_for, 6),
            "worker_id": self._worker_id,
            logs.IN_MESSAGE: _FIELDS,
        }
        name = f"{kind} (job {job.id}, queue {job.queue})" if kind else f"job {job.id}"
        message = f"attempt {job.attempt} of {name} {told}{after}{then}"
        shown = None if error is None or trace is None else (type(error), error, trace)
        logs.write(log, level, message, extra=extra, error=shown, details=text)


def _handlers_part(error: BaseException | None) -> TracebackType | None:
    """Return the part of the traceback that belongs to the handler.

    Return None if there is none, or if the error was raised on purpose, as ``Abort`` is.
    """
    if error is None or (isinstance(error, _DELIBERATE) and error.__cause__ is None):
        return None
    trace = error.__traceback__
    trace = trace.tb_next if trace is not None else None  # the first frame is the executor's
    if trace is None or trace.tb_frame.f_globals.get("__name__") == codec.__name__:
        return None
    return trace
