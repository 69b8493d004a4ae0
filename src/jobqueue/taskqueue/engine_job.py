"""A job of the task queue as a job of the engine, and the task that executes it."""

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
"""The task that executes it. Stores have an index for jobs of this type: it never changes."""

RECOVERIES = 3
"""The number of times that a job goes to another worker. Its own failure is final."""

_FIELDS = {"job_type": str, "work_duration_ms": int, "payload_size_bytes": int, "labels": dict}


def to_job(spec: Spec, key: str) -> JobSpec:
    """Return the job to submit. Equal specs have equal payloads, by which a key is compared."""
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
    """Read the spec of a payload. InvalidArgument: it did not come from ``to_job``."""
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not all(
        type(fields.get(name)) is kind for name, kind in _FIELDS.items()
    ):
        raise InvalidArgument("payload", f"expected an object with {', '.join(_FIELDS)}")
    return Spec(**{name: fields[name] for name in _FIELDS})


async def run_taskqueue_job(payload: bytes, ctx: Context) -> bytes:
    """Execute a job of ``taskqueue.v1`` as its own services do.

    There a cancel does not interrupt a job, so it does not here: the job takes its time, and is
    cancelled then. The end of the worker, or a second cancel, interrupts it.
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
    return define(run_taskqueue_job, name=TYPE, options=TaskOptions(queue=QUEUE))
