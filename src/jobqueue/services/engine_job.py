"""How a job of the task queue is kept as a job of the engine."""

from __future__ import annotations

import json

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import JobSpec
from jobqueue.services.model import Spec

QUEUE = "taskqueue"
TYPE = "taskqueue.v1"
"""The task that executes it. Stores have an index for jobs of this type: it never changes."""

RECOVERIES = 3
"""How often it is given to another worker. Its own failure is final: its task says so."""

_FIELDS = {"job_type": str, "work_duration_ms": int, "payload_size_bytes": int, "labels": dict}


def to_job(spec: Spec, key: str) -> JobSpec:
    """The job to submit. Equal specs have equal payloads, which is what a key is compared by."""
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
    """What was asked for; InvalidArgument for a payload that came another way and says else."""
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or not all(
        type(fields.get(name)) is kind for name, kind in _FIELDS.items()
    ):
        raise InvalidArgument("payload", f"expected an object with {', '.join(_FIELDS)}")
    return Spec(**{name: fields[name] for name in _FIELDS})
