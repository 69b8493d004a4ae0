"""The topics of records and hints, their keys, and the hints of each event."""

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
    StreamItem,
    WorkerChange,
    WorkerEvent,
)
from jobqueue.events.codec import Headers, UnknownRecord, encode, record_headers, store_headers
from jobqueue.events.publisher import Message
from jobqueue.pb.jq.v1 import dispatch_pb2 as pb

# Room in a message beside the payload: labels, names, error texts.
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
    """Topics of hints, by their contents."""

    requests: str = "job-requests"  # jobs to be handed out, by job id
    assignments: str = "job-assignments"  # a partition for each worker
    results: str = "job-results"  # starts and ends of attempts, by job id
    workers: str = "worker-events"  # by worker id
    assignment_partitions: int = 64

    @property
    def all(self) -> Mapping[str, int]:
        """Their names, each with its number of partitions.

        The leader reads its topics whole: with one partition the batches are larger.
        """
        return {
            self.requests: 1,
            self.assignments: self.assignment_partitions,
            self.results: 1,
            self.workers: 1,
        }

    def messages(self, item: StreamItem) -> list[Message]:
        """Return the hints of a change."""
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
        # A worker without a route is connected to a server, which delivers the job. One whose
        # settings give more partitions than there are finds its jobs in the store.
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
    """Decode a hint; UnknownRecord if this version does not know it."""
    if data is None:
        raise UnknownRecord("not a hint: a tombstone")
    try:
        read = pb.Hint.FromString(data)
    except DecodeError as error:
        raise UnknownRecord(f"not a hint: {error}") from error
    kind = _KIND_OF.get(read.kind)
    if kind is None:
        raise UnknownRecord(f"a hint of kind {read.kind}, which is unknown here")
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
    """Topics by their contents."""

    jobs: str = "jq.job-events"  # all records of jobs, by job id
    dead_letters: str = "job.dead-lettered"  # the events into DEAD_LETTERED, again
    queues: str = "jq.queue-events"  # all records of queues, by name
    dispatch: DispatchTopics | None = None  # hints, where workers learn of their jobs by Kafka

    @property
    def all(self) -> tuple[str, ...]:
        """The topics from which a store is rebuilt, each once."""
        return tuple(dict.fromkeys((self.jobs, self.dead_letters, self.queues)))

    def of_store(self, identity: Identity) -> Callable[[StreamItem], list[Message]]:
        """Return the function from a store's changes to messages: records, and their hints."""
        dispatch, shared = self.dispatch, store_headers(identity)

        def messages(item: StreamItem) -> list[Message]:
            found = self._records(item, shared)
            return found if dispatch is None else found + dispatch.messages(item)

        return messages

    def _records(self, item: StreamItem, shared: Headers) -> list[Message]:
        if isinstance(item, WorkerEvent | AssignmentRepeated):
            return []  # only hints tell of them
        value, name = encode(item), item.event_id
        if isinstance(item, JobEvent):
            topic, key, at = self.jobs, item.event.job_id, item.event.at
        elif isinstance(item, QueueEvent):
            topic, key, at = self.queues, item.queue.name, item.at
        else:
            topic, key, at = self.jobs, item.job_id, item.at
        told = shared + record_headers(item, name, at)
        made = [Message(topic, key.encode(), value, name, headers=told, at=at)]
        if isinstance(item, JobEvent) and item.event.to_state is State.DEAD_LETTERED:
            letter = encode(item, letter=True)
            made.append(made[0]._replace(topic=self.dead_letters, value=letter))
        return made
