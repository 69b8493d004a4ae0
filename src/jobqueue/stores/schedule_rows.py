"""Convert schedules to and from stored rows and entries of the outbox.

A store keeps a schedule's payload as bytes, its definition and its state as JSON, and the time at
which the leader must look at it. So a tick changes the state alone, and a new field of a schedule
or of a job needs no migration. Servers of older versions leave fields out that they do not know.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from jobqueue.core.job import JobSpec
from jobqueue.core.schedule import (
    Overlap,
    Schedule,
    ScheduleSpec,
    ScheduleState,
    Source,
    read_fields,
)
from jobqueue.core.stream import ScheduleChange, ScheduleEvent

_UNSAID = JobSpec(payload=b"")
_JOB = tuple(one.name for one in fields(JobSpec) if one.name != "payload")
_SPEC = tuple(one.name for one in fields(ScheduleSpec) if one.name not in ("name", "job"))


def definition_body(schedule: Schedule) -> str:
    """Return everything about a schedule but its name, payload, state and revision, as JSON."""
    spec = schedule.spec
    said = {name: getattr(spec, name) for name in _SPEC}
    said |= {name: getattr(schedule, name) for name in ("source", "created_at", "updated_at")}
    job = {name: getattr(spec.job, name) for name in _JOB}
    job["labels"] = dict(spec.job.labels)
    said["job"] = {n: value for n, value in job.items() if value != getattr(_UNSAID, n)}
    return json.dumps({name: value for name, value in said.items() if value is not None})


def state_body(state: ScheduleState) -> str:
    """Return the state of a schedule as JSON."""
    return json.dumps({name: value for name, value in asdict(state).items() if value is not None})


def read_state(body: str | bytes) -> ScheduleState:
    """Return the state of a schedule from its stored JSON."""
    return ScheduleState(**read_fields(ScheduleState, json.loads(body)))


def read_schedule(
    name: str, revision: int, definition: str | bytes, state: str | bytes, payload: bytes
) -> Schedule:
    """Return a schedule from the values of its columns."""
    said: Mapping[str, Any] = json.loads(definition)
    asked: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in read_fields(JobSpec, said["job"]).items()
    }
    spec = {field: said[field] for field in _SPEC if field in said}
    spec["overlap"] = Overlap(spec["overlap"])
    return Schedule(
        spec=ScheduleSpec(name=name, job=JobSpec(payload=payload, **asked), **spec),
        source=Source(said["source"]),
        created_at=said["created_at"],
        updated_at=said["updated_at"],
        revision=revision,
        state=read_state(state),
    )


def event_body(change: ScheduleChange, schedule: Schedule) -> str:
    """Return a schedule after a change as JSON for an entry of the outbox."""
    said: dict[str, Any] = {
        "name": schedule.name,
        "revision": schedule.revision,
        "state": state_body(schedule.state),
    }
    if ScheduleEvent.of(change, schedule, 0, 0.0).schedule is not None:
        said["definition"] = definition_body(schedule)
        said["payload"] = base64.b64encode(schedule.spec.job.payload).decode()
    return json.dumps(said)


def read_event(kind: int, number: int, at: float, said: Mapping[str, Any]) -> ScheduleEvent:
    """Return the record for an entry of the outbox."""
    name, revision, state = said["name"], said["revision"], read_state(said["state"])
    schedule = None
    if "definition" in said:
        payload = base64.b64decode(said["payload"])
        schedule = read_schedule(name, revision, said["definition"], said["state"], payload)
    return ScheduleEvent(ScheduleChange(kind), name, number, at, state, revision, schedule)
