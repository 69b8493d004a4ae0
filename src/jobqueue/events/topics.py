"""Choose the Kafka topics and keys of records and hints, and make the hints of each event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from jobqueue.core.dispatch import Hint, HintKind
from jobqueue.core.identity import Identity
from jobqueue.core.lifecycle import State
from jobqueue.core.stream import (
    AssignmentRepeated,
    JobEvent,
    QueueEvent,
    Route,
    ScheduleEvent,
    StreamItem,
    WorkerChange,
    WorkerEvent,
)
from jobqueue.events.codec import Headers, UnknownRecord, encode, record_headers, store_headers
from jobqueue.events.publisher import Message
from jobqueue.pb.jq.v1 import dispatch_pb2 as pb

# Bytes of a message beside its payload, for labels, names and error texts.
MESSAGE_MARGIN = 64 * 1024
_NUMBERS = {kind: pb.HintKind.Value(f"HINT_KIND_{kind.name}") for kind in HintKind}
_KIND_OF: dict[int, HintKind] = {number: kind for kind, number in _NUMBERS.items()}
_HEADERS = {kind: [("event", kind.value.encode())] for kind in HintKind}
_OF_WORKERS = {
    WorkerChange.REGISTERED: HintKind.WORKER_REGISTERED,
    WorkerChange.DEAD: HintKind.WORKER_DEAD,
}
_OF_ATTEMPTS = {
    State.RUNNING: HintKind.JOB_STARTED,
    State.DONE: HintKind.JOB_COMPLETED,
    State.FAILED: HintKind.JOB_FAILED,
    State.DEAD_LETTERED: HintKind.JOB_FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTopics:
    """Holds the names of the topics of hints, and makes the hints of each change."""

    requests: str = "job-requests"  # jobs to be handed out, by job id
    assignments: str = "job-assignments"  # a partition for each worker
    results: str = "job-results"  # starts and ends of attempts, by job id
    workers: str = "worker-events"  # by worker id
    assignment_partitions: int = 64

    @property
    def all(self) -> Mapping[str, int]:
        """Return the number of partitions of each topic of hints, by the topic's name."""
        # The leader reads all partitions of the others: with one partition its batches are larger.
        return {
            self.requests: 1,
            self.assignments: self.assignment_partitions,
            self.results: 1,
            self.workers: 1,
        }

    def messages(self, item: StreamItem) -> list[Message]:
        """Return the messages with the hints that a change causes."""
        if isinstance(item, JobEvent):
            return self._of_job(item)
        if isinstance(item, AssignmentRepeated):
            hint = Hint(
                HintKind.JOB_ASSIGNED, item.event_id, item.at, item.job_id, item.queue, item.attempt
            )
            return self._assigned(hint, item.worker_id, item.route)
        if isinstance(item, WorkerEvent):
            kind, worker_id = _OF_WORKERS[item.change], item.worker_id
            hint = Hint(kind, item.event_id, item.at, "", "", 0, worker_id, item.incarnation)
            return [_message(self.workers, worker_id, hint)]
        return []

    def _of_job(self, item: JobEvent) -> list[Message]:
        event, entered, topic = item.event, item.event.to_state, self.results
        if entered is State.PENDING:
            topic = self.requests
            kind = HintKind.JOB_CREATED if event.from_state is None else HintKind.JOB_REQUEUED
        else:
            kind = _OF_ATTEMPTS.get(entered, HintKind.JOB_ASSIGNED)
        hint = Hint(kind, item.event_id, event.at, event.job_id, event.queue, event.attempt)
        if entered is State.ASSIGNED:
            return self._assigned(hint, event.worker_id or "", item.route)
        hint.worker_id = event.worker_id or ""
        hint.final = entered is State.DEAD_LETTERED
        return [_message(topic, event.job_id, hint)]

    def _assigned(self, hint: Hint, worker_id: str, route: Route | None) -> list[Message]:
        # A worker without a route is connected to a server, which delivers the job. A worker whose
        # settings give more partitions than the servers' may have a partition that does not exist;
        # that worker finds its jobs in the store.
        if route is None or route.partition >= self.assignment_partitions:
            return []
        hint.worker_id, hint.incarnation = worker_id, route.incarnation
        return [_message(self.assignments, worker_id, hint, route.partition)]


def _message(topic: str, key: str, hint: Hint, partition: int = -1) -> Message:
    return Message(
        topic, key.encode(), encode_hint(hint), hint.event_id, partition, _HEADERS[hint.kind]
    )


def encode_hint(hint: Hint) -> bytes:
    return pb.Hint(
        kind=_NUMBERS[hint.kind],
        event_id=hint.event_id,
        timestamp=hint.at,
        job_id=hint.job_id,
        queue=hint.queue,
        attempt=hint.attempt,
        worker_id=hint.worker_id,
        incarnation=hint.incarnation,
        final=hint.final,
    ).SerializeToString()


def decode_hint(data: bytes | None) -> Hint:
    """Decode a hint. Raise UnknownRecord if the bytes are not a hint known to this version."""
    if data is None:
        raise UnknownRecord("not a hint: a tombstone (no value)")
    try:
        read = pb.Hint.FromString(data)
    except DecodeError as error:
        raise UnknownRecord(f"not a hint: {error}") from error
    kind = _KIND_OF.get(read.kind)
    if kind is None:
        raise UnknownRecord(f"a hint of kind {read.kind}, which this version does not know")
    return Hint(
        kind,
        read.event_id,
        read.timestamp,
        read.job_id,
        read.queue,
        read.attempt,
        read.worker_id,
        read.incarnation,
        read.final,
    )


@dataclass(frozen=True, slots=True)
class Topics:
    """Holds the names of the topics, and makes the messages of each change."""

    jobs: str = "jq.job-events"  # all records of jobs, by job id
    dead_letters: str = "job.dead-lettered"  # the events into DEAD_LETTERED, again
    queues: str = "jq.queue-events"  # all records of queues and schedules, by name
    dispatch: DispatchTopics | None = None  # of hints, if workers learn of their jobs by Kafka

    @property
    def all(self) -> tuple[str, ...]:
        """Return the names of the topics of records, each name once: a rebuild reads them all."""
        return tuple(dict.fromkeys((self.jobs, self.dead_letters, self.queues)))

    def of_store(self, identity: Identity) -> Callable[[StreamItem], list[Message]]:
        """Return a function that turns a change of the given store into messages.

        The messages are the change's records and, with ``dispatch``, its hints.
        """
        dispatch, shared = self.dispatch, store_headers(identity)

        def messages(item: StreamItem) -> list[Message]:
            found = self._records(item, shared)
            return found if dispatch is None else found + dispatch.messages(item)

        return messages

    def _records(self, item: StreamItem, shared: Headers) -> list[Message]:
        if isinstance(item, WorkerEvent | AssignmentRepeated):
            return []  # these changes have hints only
        value, name = encode(item), item.event_id
        if isinstance(item, JobEvent):
            topic, key, at = self.jobs, item.event.job_id, item.event.at
        elif isinstance(item, QueueEvent):
            topic, key, at = self.queues, item.queue.name, item.at
        elif isinstance(item, ScheduleEvent):
            topic, key, at = self.queues, item.name, item.at
        else:
            topic, key, at = self.jobs, item.job_id, item.at
        told = shared + record_headers(item, name, at)
        made = [Message(topic, key.encode(), value, name, headers=told, at=at)]
        if isinstance(item, JobEvent) and item.event.to_state is State.DEAD_LETTERED:
            letter = encode(item, letter=True)
            made.append(made[0]._replace(topic=self.dead_letters, value=letter))
        return made
