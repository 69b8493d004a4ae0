"""Who may call which method: the caller-to-method matrix, kept by the service that is called.

A service says who it is in the metadata of each call; one that shows a certificate is who the
certificate says, and nobody if that names nobody. Whoever says nothing is a client from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobqueue.api.grpc.door import CERTIFICATE, certificate_name
from jobqueue.core.errors import InvalidArgument, PermissionDenied
from jobqueue.pb import taskqueue_internal_pb2 as internal
from jobqueue.pb import taskqueue_public_pb2 as public
from jobqueue.services.model import Actor, Status

CALLER = "tq-caller"
REQUEST_ID = "tq-request-id"
PURPOSE = "tq-purpose"
INCARNATION = "tq-incarnation"

RESCUE = "rescue"
LOOK = "look"  # of an EnqueueJob that queues nothing: is the job there?
MAX_REQUEST_ID_LENGTH = 128
_SHOWN = 80
_ACTORS: Mapping[str, Actor] = {actor.value: actor for actor in Actor}
_STATUSES: frozenset[int] = frozenset(Status)


class CallerRefused(PermissionDenied):
    """The matrix does not have this call."""


@dataclass(frozen=True, slots=True)
class Call:
    """What came with a call beside the request."""

    said: tuple[str, ...] = ()  # who the caller says it is
    certificate: str | None = None  # who its certificate says it is; empty if it names nobody
    request_id: str = ""
    purpose: str = ""
    incarnation: str = ""

    @property
    def name(self) -> str:
        """Of the caller, for the log."""
        return (self.certificate or ",".join(self.said) or Actor.CLIENT)[:_SHOWN]

    def actor(self) -> Actor:
        """Who calls, or CallerRefused."""
        if len(self.said) > 1:
            raise CallerRefused(f"{CALLER} was given {len(self.said)} times")
        said = self.said[0] if self.said else ""
        if self.certificate is not None:
            known = _ACTORS.get(self.certificate, Actor.CLIENT)
            if said and said not in (self.certificate, known):
                named = self.certificate[:_SHOWN]
                raise CallerRefused(
                    f"{CALLER} is {said[:_SHOWN]!r}, the certificate says {named!r}"
                )
            return known
        if not said:
            return Actor.CLIENT
        if said not in _ACTORS:
            raise CallerRefused(
                f"{CALLER} is {said[:_SHOWN]!r}, which is none of: {', '.join(_ACTORS)}"
            )
        return _ACTORS[said]

    def check(self) -> None:
        """InvalidArgument for what cannot be kept."""
        for name, value in ((REQUEST_ID, self.request_id), (INCARNATION, self.incarnation)):
            if len(value) > MAX_REQUEST_ID_LENGTH:
                raise InvalidArgument(name, f"at most {MAX_REQUEST_ID_LENGTH} characters")


def heard(context: Any) -> Call:
    """Read what came with a call."""
    said: list[str] = []
    request_id = purpose = incarnation = ""
    for name, value in context.invocation_metadata() or ():
        if name == CALLER:
            said.append(value)
        elif name == REQUEST_ID:
            request_id = value
        elif name == PURPOSE:
            purpose = value
        elif name == INCARNATION:
            incarnation = value
    auth = context.auth_context()
    certificate = certificate_name(auth) if CERTIFICATE in auth else None
    return Call(tuple(said), certificate, request_id, purpose, incarnation)


# -- the matrix ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Only:
    """A call that is allowed under a condition. What is malformed passes: it fails by itself."""

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

# The document's table, with what ADR 14 adds for the Coordinator: EnqueueJob, for the rescue that
# the document asks for, and ListJobRecords, to find jobs that no worker has.
MATRIX: Mapping[Actor, Mapping[str, Only]] = {
    Actor.CLIENT: {
        "SubmitJob": _ALWAYS,
        "GetJobStatus": _ALWAYS,
        "GetJobResult": _ALWAYS,
        "CancelJob": _ALWAYS,
        "ListJobs": _ALWAYS,
    },
    Actor.GATEWAY: {
        "CreateJob": _ALWAYS,
        "DeleteJobIfStatus": _ALWAYS,
        "GetJobRecord": _ALWAYS,
        "ListJobRecords": _ALWAYS,
        "SetCancelRequested": _ALWAYS,
        "TransitionJobStatus": Only("for QUEUED -> CANCELED", _is_queued_cancel),
        "EnqueueJob": _ALWAYS,
        "RemoveJobIfPresent": _ALWAYS,
        "GetResult": _ALWAYS,
        "StoreResult": Only("with terminal_status CANCELED", _is_canceled_envelope),
    },
    Actor.COORDINATOR: {
        "DequeueJob": _ALWAYS,
        "RemoveJobIfPresent": _ALWAYS,
        "EnqueueJob": Only(f"with {PURPOSE}: {RESCUE}", _is_rescue),
        "TransitionJobStatus": _ALWAYS,
        "GetJobRecord": _ALWAYS,
        "ListJobRecords": _ALWAYS,
        "StoreResult": _ALWAYS,
    },
    Actor.WORKER: {
        "WorkerHeartbeat": _ALWAYS,
        "FetchWork": _ALWAYS,
        "ReportWorkOutcome": _ALWAYS,
    },
}


def admit(method: str, request: object, call: Call) -> Actor:
    """Who calls; CallerRefused unless the matrix has the call."""
    actor = call.actor()
    allowed = MATRIX[actor].get(method)
    if allowed is None:
        raise CallerRefused(f"{method} is not for the {actor}")
    if not allowed.holds(request, call):
        raise CallerRefused(f"{method} is for the {actor} only {allowed.when}")
    return actor
