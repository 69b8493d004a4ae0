"""Identify callers, and enforce the matrix that says which caller may call which method.

A service sends its name in the metadata of each call. If the caller has a certificate, only the
name in the certificate counts; a certificate without the name of a service belongs to a client. A
caller without a name is a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobqueue.api.grpc.authorizer import CERTIFICATE, certificate_name
from jobqueue.core.errors import InvalidArgument, PermissionDenied
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.taskqueue.components.model import Actor, Status

CALLER = "tq-caller"
REQUEST_ID = "tq-request-id"
PURPOSE = "tq-purpose"
INCARNATION = "tq-incarnation"

RESCUE = "rescue"
LOOK = "look"  # an EnqueueJob with this purpose only returns whether the job is in the queue
MAX_REQUEST_ID_LENGTH = 128
_SHOWN = 80
_ACTORS: Mapping[str, Actor] = {actor.value: actor for actor in Actor}
_STATUSES: frozenset[int] = frozenset(Status)


class CallerRefused(PermissionDenied):
    """Raised if the caller may not make this call."""


@dataclass(frozen=True, slots=True)
class Call:
    """Holds the metadata of a call: who calls, with which request id, for which purpose."""

    said: tuple[str, ...] = ()  # the names that the caller sent
    certificate: str | None = None  # its name; empty: not used
    request_id: str = ""
    purpose: str = ""
    incarnation: str = ""

    @property
    def name(self) -> str:
        """Return the name of the caller for log lines."""
        return (self.certificate or ",".join(self.said) or Actor.CLIENT)[:_SHOWN]

    def actor(self) -> Actor:
        """Return the kind of the caller.

        CallerRefused means that the caller's names contradict each other or are unknown.
        """
        if len(self.said) > 1:
            raise CallerRefused(f"{CALLER}: sent {len(self.said)} times, at most one is allowed")
        said = self.said[0] if self.said else ""
        if self.certificate is not None:
            known = _ACTORS.get(self.certificate, Actor.CLIENT)
            if said and said not in (self.certificate, known):
                named = self.certificate[:_SHOWN]
                raise CallerRefused(
                    f"{CALLER}: {said[:_SHOWN]!r}, the certificate says {named!r}; the names must"
                    " be equal"
                )
            return known
        if not said:
            return Actor.CLIENT
        if said not in _ACTORS:
            raise CallerRefused(f"{CALLER}: {said[:_SHOWN]!r} is not one of: {', '.join(_ACTORS)}")
        return _ACTORS[said]

    def check(self) -> None:
        """Raise InvalidArgument if the request id or the incarnation is too long."""
        for name, value in ((REQUEST_ID, self.request_id), (INCARNATION, self.incarnation)):
            if len(value) > MAX_REQUEST_ID_LENGTH:
                raise InvalidArgument(name, f"must have at most {MAX_REQUEST_ID_LENGTH} characters")


def heard(context: Any) -> Call:
    """Return the metadata of a gRPC call as a ``Call``."""
    metadata = list(context.invocation_metadata() or ())
    latest = dict(metadata)
    auth = context.auth_context()
    return Call(
        said=tuple(value for name, value in metadata if name == CALLER),
        certificate=certificate_name(auth) if CERTIFICATE in auth else None,
        request_id=latest.get(REQUEST_ID, ""),
        purpose=latest.get(PURPOSE, ""),
        incarnation=latest.get(INCARNATION, ""),
    )


# The matrix.


@dataclass(frozen=True, slots=True)
class Only:
    """Describes a condition under which a caller may call a method.

    A malformed request fulfils every condition, because the method itself refuses it.
    """

    when: str
    holds: Callable[[Any, Call], bool]


def _is_rescue(request: internal.EnqueueJobRequest, call: Call) -> bool:
    return call.purpose == RESCUE


def _is_canceled_envelope(request: internal.StoreResultRequest, call: Call) -> bool:
    return request.terminal_status not in (public.DONE, public.FAILED)


def _is_queued_cancel(request: internal.TransitionJobStatusRequest, call: Call) -> bool:
    ends = request.expected_from_status, request.to_status
    return ends == (public.QUEUED, public.CANCELED) or not _STATUSES.issuperset(ends)


_ALWAYS = Only("always", lambda request, call: True)


def _calls(*methods: str, **conditions: Only) -> dict[str, Only]:
    return {**dict.fromkeys(methods, _ALWAYS), **conditions}


# The table of the specification. ADR 14 adds two calls of the coordinator: EnqueueJob, to put a job
# back into the queue, and ListJobRecords, to find RUNNING jobs that no worker has.
MATRIX: Mapping[Actor, Mapping[str, Only]] = {
    Actor.CLIENT: _calls("SubmitJob", "GetJobStatus", "GetJobResult", "CancelJob", "ListJobs"),
    Actor.GATEWAY: _calls(
        *("CreateJob", "DeleteJobIfStatus", "GetJobRecord", "ListJobRecords", "SetCancelRequested"),
        *("EnqueueJob", "RemoveJobIfPresent", "GetResult"),
        TransitionJobStatus=Only("for QUEUED -> CANCELED", _is_queued_cancel),
        StoreResult=Only("with terminal_status CANCELED", _is_canceled_envelope),
    ),
    Actor.COORDINATOR: _calls(
        *("DequeueJob", "RemoveJobIfPresent", "TransitionJobStatus", "GetJobRecord"),
        *("ListJobRecords", "StoreResult"),
        EnqueueJob=Only(f"with {PURPOSE}: {RESCUE}", _is_rescue),
    ),
    Actor.WORKER: _calls("WorkerHeartbeat", "FetchWork", "ReportWorkOutcome"),
}


def admit(method: str, request: object, call: Call) -> Actor:
    """Return the kind of the caller. CallerRefused means that it may not make this call."""
    actor = call.actor()
    allowed = MATRIX[actor].get(method)
    if allowed is None:
        raise CallerRefused(f"the {actor} may not call {method}")
    if not allowed.holds(request, call):
        raise CallerRefused(f"{method}: the {actor} may call this method only {allowed.when}")
    return actor
