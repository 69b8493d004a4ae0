"""Convert a task queue job to a job of the engine, and define the task that executes it."""

from __future__ import annotations

import asyncio
import json

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import JobSpec
from jobqueue.taskqueue.components.model import Spec
from jobqueue.taskqueue.components.worker_loop import WorkFailed, simulate
from jobqueue.tasks.context import Context, PlainFailure
from jobqueue.tasks.task import TaskDefinition, TaskOptions, define

QUEUE = "taskqueue"
TYPE = "taskqueue.v1"
"""The type of task queue jobs in the engine. Stores index it, so it must never change."""

RECOVERIES = 3
"""The number of retries after a lost worker. A failure of the job itself is final."""

_FIELDS = {"job_type": str, "work_duration_ms": int, "payload_size_bytes": int, "labels": dict}


def to_job(spec: Spec, key: str) -> JobSpec:
    """Return the engine's job for a task queue job.

    Equal specs have equal payloads, so the engine recognizes a repeated submit with the same key.
    """
    return JobSpec(
        payload=_payload(spec),
        queue=QUEUE,
        type=TYPE,
        max_retries=RECOVERIES,
        key=key or None,
        labels=dict(spec.labels),
    )


def _payload(spec: Spec) -> bytes:
    fields = {name: getattr(spec, name) for name in _FIELDS}
    fields["labels"] = dict(spec.labels)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def to_spec(payload: bytes) -> Spec:
    """Return the spec that a payload contains.

    InvalidArgument means that ``to_job`` did not make the payload.
    """
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not all(
        type(fields.get(name)) is kind for name, kind in _FIELDS.items()
    ):
        raise InvalidArgument("payload", f"expected a JSON object with {', '.join(_FIELDS)}")
    return Spec(**{name: fields[name] for name in _FIELDS})


async def run_taskqueue_job(payload: bytes, ctx: Context) -> bytes:
    """Execute a job of ``taskqueue.v1`` in the same way as ``WorkerLoop`` does.

    A first cancel does not interrupt the work: the job runs for its full duration and counts as
    cancelled only then. The stop of the worker, or a second cancel, interrupts the work.
    """
    work = asyncio.ensure_future(simulate(to_spec(payload)))
    try:
        try:
            made = await asyncio.shield(work)
        except asyncio.CancelledError:
            if not ctx.cancelled or ctx.remaining() == 0.0:
                raise
            made = await work
    except WorkFailed as failure:
        raise PlainFailure(str(failure)) from None
    finally:
        work.cancel()
    return made.output


def task() -> TaskDefinition:
    """Return the task that executes task queue jobs in an engine's worker."""
    return define(run_taskqueue_job, name=TYPE, options=TaskOptions(queue=QUEUE))
