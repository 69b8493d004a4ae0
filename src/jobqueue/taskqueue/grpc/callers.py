"""The caller-to-method matrix. The service that is called enforces it.

A service names itself in the metadata of each call. With a certificate, the name in that counts,
and a certificate without a name of a service makes a client. A caller without a name is a client.
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
LOOK = "look"  # of an EnqueueJob that queues nothing: is the job there?
MAX_REQUEST_ID_LENGTH = 128
_SHOWN = 80
_ACTORS: Mapping[str, Actor] = {actor.value: actor for actor in Actor}
_STATUSES: frozenset[int] = frozenset(Status)


class CallerRefused(PermissionDenied):
    """The matrix does not have this call."""


@dataclass(frozen=True, slots=True)
class Call:
    """The metadata of a call."""

    said: tuple[str, ...] = ()  # the names that the caller gives itself
    certificate: str | None = None  # the name in its certificate; empty: none that counts
    request_id: str = ""
    purpose: str = ""
    incarnation: str = ""

    @property
    def name(self) -> str:
        """The name of the caller for the log."""
        return (self.certificate or ",".join(self.said) or Actor.CLIENT)[:_SHOWN]

    def actor(self) -> Actor:
        """Return the caller. CallerRefused: it contradicts itself, or is unknown."""
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
        """Refuse an id that is too long to keep."""
        for name, value in ((REQUEST_ID, self.request_id), (INCARNATION, self.incarnation)):
            if len(value) > MAX_REQUEST_ID_LENGTH:
                raise InvalidArgument(name, f"at most {MAX_REQUEST_ID_LENGTH} characters")


def heard(context: Any) -> Call:
    """Read the metadata of a call."""
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
    """A condition of a call. A malformed request passes: it fails by itself."""

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


# The document's table, with what ADR 14 adds for the Coordinator: EnqueueJob, for the rescue that
# the document asks for, and ListJobRecords, to find jobs that no worker has.
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
    """Return the caller. CallerRefused: the matrix does not have the call."""
    actor = call.actor()
    allowed = MATRIX[actor].get(method)
    if allowed is None:
        raise CallerRefused(f"{method} is not for the {actor}")
    if not allowed.holds(request, call):
        raise CallerRefused(f"{method} is for the {actor} only {allowed.when}")
    return actor
