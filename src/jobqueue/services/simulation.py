"""The work of a ``taskqueue.v1`` job, the same wherever it runs: take a time, make an output."""

from __future__ import annotations

import asyncio

from jobqueue.services.model import MAX_OUTPUT_BYTES, Spec
from jobqueue.services.result_shelf import too_large
from jobqueue.services.worker_loop import Output

FAILING_TYPE = "fail"
FAILURE = "failed on purpose"


class WorkFailed(Exception):
    """The job's own failure; the text is its reason."""


async def simulate(spec: Spec) -> Output:
    """Wait, then return that many bytes; a job of the type ``fail`` fails instead."""
    await asyncio.sleep(spec.work_duration_ms / 1000)
    if spec.job_type == FAILING_TYPE:
        raise WorkFailed(FAILURE)
    size = spec.payload_size_bytes
    if size > MAX_OUTPUT_BYTES:  # not made: a few bytes of a request must not cost gigabytes
        raise WorkFailed(too_large(size, MAX_OUTPUT_BYTES))
    return Output(b"x" * size, done_summary(size))


def done_summary(size: int) -> str:
    """What is said of an output."""
    return f"{size} bytes of output"
