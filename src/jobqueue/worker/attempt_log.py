"""One log line for the end of every attempt."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any

from jobqueue import logs
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import GiveUp, Move, Reason, after_failure
from jobqueue.worker import codec
from jobqueue.worker.execution import Execution
from jobqueue.worker.outcomes import Abort, RetryLater, UnknownTask

log = logging.getLogger("jobqueue.worker")

_FIELDS = ("job_id", "type", "queue", "attempt", "duration", "worker_id")
_DELIBERATE = (Abort, RetryLater, UnknownTask)  # their message says all there is to say
_CAUSE = {Move.FAIL: Reason.HANDLER_FAILED, Move.TIME_OUT: Reason.TIMED_OUT}


class AttemptLog:
    """Words the lines. A failure that is retried is a warning, a dead letter an error."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id

    def ended(self, execution: Execution, report: Transition) -> None:
        """The attempt ended, and the server is told so by ``report``."""
        if report.move is Move.SUCCEED:
            if log.isEnabledFor(logging.DEBUG):
                self._write(logging.DEBUG, execution, "succeeded", report.ran_for)
        elif report.move is Move.ACKNOWLEDGE_CANCEL:
            self._write(logging.INFO, execution, "was cancelled", report.ran_for)
        elif report.move is Move.HAND_BACK:
            if log.isEnabledFor(logging.DEBUG):
                self._write(logging.DEBUG, execution, "is handed back, not started", None)
        else:
            self._failed(execution, report, execution.error)

    def result_refused(self, execution: Execution, report: Transition) -> None:
        """The server did not take the attempt's result; the attempt counts as failed."""
        self._failed(execution, report, None)

    def lease_lost(self, execution: Execution) -> None:
        """The server has given the attempt up."""
        told = "is not this worker's any more (its lease is gone); it is stopped, its result is not"
        self._write(logging.WARNING, execution, f"{told} taken", execution.ran_for())

    def end_not_accepted(self, execution: Execution, report: Transition) -> None:
        """The attempt's end came when the server had given the attempt up."""
        told = "ended, but the server did not accept its end: it has given the attempt up"
        self._write(logging.WARNING, execution, told, report.ran_for)

    def abandoned(self, execution: Execution) -> None:
        """The worker's own time is up."""
        told = "did not end in time; it is abandoned, and the server will reclaim the job"
        self._write(logging.WARNING, execution, told, execution.ran_for())

    def _failed(
        self, execution: Execution, report: Transition, error: BaseException | None
    ) -> None:
        job = execution.assignment
        # Decided by the server, by the same function and of the same figures.
        then = after_failure(
            _CAUSE[report.move],
            retry_count=job.retry_count,
            max_retries=job.max_retries,
            worker_deaths=0,
            poison_after=0,
            cancel_requested=False,
            retryable=report.retryable,
        )
        if not isinstance(then, GiveUp):
            left = job.max_retries - job.retry_count
            when = "" if report.retry_after is None else f" in {report.retry_after:g} s"
            level = logging.WARNING
            next_ = f"it will be retried{when} ({left} {'retry' if left == 1 else 'retries'} left)"
        else:
            level = logging.ERROR
            why = "no retries left" if then.reason is Reason.RETRIES_EXHAUSTED else "not retryable"
            next_ = f"it is a dead letter now ({why})"
        first, _, rest = report.error.partition("\n")
        head = "timed out" if report.move is Move.TIME_OUT else "failed"
        why = f"; {next_}" if report.move is Move.TIME_OUT else f"; {next_}: {first}"
        trace = _handlers_part(error)
        self._write(level, execution, head, report.ran_for, why, error, trace, rest)

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
    """The frames of the handler; None where there are none, or the error says all there is."""
    if error is None or (isinstance(error, _DELIBERATE) and error.__cause__ is None):
        return None
    trace = error.__traceback__
    trace = trace.tb_next if trace is not None else None  # the first frame is the executor's
    if trace is None or trace.tb_frame.f_globals.get("__name__") == codec.__name__:
        return None
    return trace
