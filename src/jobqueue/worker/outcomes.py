"""What a handler raises to say more than "it failed"."""

from __future__ import annotations


class RetryLater(Exception):
    """The attempt failed; try again after that many seconds instead of the usual backoff."""

    def __init__(self, after: float, message: str = "") -> None:
        super().__init__(message or f"retry in {after:g} s")
        self.after = max(0.0, float(after))


class Abort(Exception):
    """The job cannot succeed: do not try again."""


class PlainFailure(Abort):
    """Like ``Abort``, but the job's error is this text alone, without the kind of the error."""


class JobCancelled(Exception):
    """Raised by ``Context.raise_if_cancelled``: the handler stops because it was asked to."""


class UnknownTask(Exception):
    """This worker does not have the task; another one, or its next version, may."""
