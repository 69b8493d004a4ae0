"""The owner of the outputs of ended jobs. In memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from jobqueue.core.errors import InvalidArgument
from jobqueue.services import journal
from jobqueue.services.job_ledger import MAX_JOBS
from jobqueue.services.model import (
    MAX_OUTPUT_BYTES,
    OUTPUT_TOO_LARGE,
    Envelope,
    Status,
    Stored,
    checksum,
)
from jobqueue.services.repeats import Repeats

MAX_RESULT_BYTES = 2**30


class ResultShelf:
    """One envelope for each job: the first one stays.

    At most ``max_results`` are kept, the latest; that must be more than the jobs that are kept.
    Their outputs have at most ``max_bytes`` in all: beyond that, too, the oldest are forgotten.
    """

    def __init__(
        self,
        *,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        max_results: int = 2 * MAX_JOBS,
        max_bytes: int = MAX_RESULT_BYTES,
    ) -> None:
        self._max_output_bytes = max_output_bytes
        self._max_results = max_results
        self._max_bytes = max_bytes
        self._bytes = 0
        self._envelopes: OrderedDict[str, Envelope] = OrderedDict()
        self._repeats = Repeats()

    def __len__(self) -> int:
        return len(self._envelopes)

    async def store(self, envelope: Envelope, *, request_id: str) -> Stored:
        """Keep it, unless there is one."""
        if not envelope.status.terminal:
            raise InvalidArgument("terminal_status", "must be DONE, FAILED or CANCELED")
        what = ("store", envelope.job_id, envelope.status)
        return self._repeats.answer(what, request_id, lambda: self._store(envelope))

    def _store(self, envelope: Envelope) -> Stored:
        envelope = self._bounded(envelope)
        found = self._envelopes.get(envelope.job_id)
        if found is None:
            self._envelopes[envelope.job_id] = envelope
            self._bytes += len(envelope.output)
            while len(self._envelopes) > self._max_results or self._bytes > self._max_bytes:
                _, oldest = self._envelopes.popitem(last=False)
                self._bytes -= len(oldest.output)
            return Stored(True, False, envelope.status)
        same = found == envelope
        if not same:
            journal.warn(
                "result_conflict",
                f"kept {found.status.name}, ignored a later {envelope.status.name}",
                job_id=envelope.job_id,
                current_status=found.status.name,
            )
        return Stored(same, True, found.status)

    def _bounded(self, envelope: Envelope) -> Envelope:
        size = len(envelope.output)
        if size > self._max_output_bytes:
            return replace(
                envelope,
                status=Status.FAILED,
                output=b"",
                output_summary=too_large(size, self._max_output_bytes),
                checksum=checksum(b""),
            )
        actual = checksum(envelope.output)
        if envelope.checksum and envelope.checksum != actual:
            raise InvalidArgument(
                "checksum", "must be the SHA-256 of output_bytes in lowercase hex digits"
            )
        return replace(envelope, checksum=actual)

    async def get(self, job_id: str) -> Envelope | None:
        """The envelope kept."""
        return self._envelopes.get(job_id)


def too_large(size: int, most: int) -> str:
    """The failure of a job with too much output."""
    return f"{OUTPUT_TOO_LARGE}: {size} bytes of output, at most {most} are kept"
