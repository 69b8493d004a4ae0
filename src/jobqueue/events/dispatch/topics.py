"""Which hints are told of an event, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jobqueue.core.dispatch import Hint, HintKind
from jobqueue.core.lifecycle import State
from jobqueue.core.stream import (
    AssignmentRepeated,
    JobEvent,
    Route,
    StreamItem,
    WorkerChange,
    WorkerEvent,
)
from jobqueue.events.dispatch.codec import encode
from jobqueue.events.publisher import Message

_HEADERS = {kind: [("event", kind.value.encode())] for kind in HintKind}
_OF_WORKERS = {
    WorkerChange.REGISTERED: HintKind.WORKER_REGISTERED,
    WorkerChange.DEAD: HintKind.WORKER_DEAD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchTopics:
    """Topics by what they carry."""

    requests: str = "job-requests"  # jobs to be handed out, by job id
    assignments: str = "job-assignments"  # a partition for each worker
    results: str = "job-results"  # what workers made of them, by job id
    workers: str = "worker-events"  # by worker id
    assignment_partitions: int = 64

    @property
    def all(self) -> Mapping[str, int]:
        """Their names, each with its number of partitions.

        What the leader reads, it reads whole: in one partition the batches are larger.
        """
        return {
            self.requests: 1,
            self.assignments: self.assignment_partitions,
            self.results: 1,
            self.workers: 1,
        }

    def messages(self, item: StreamItem) -> list[Message]:
        """What is told of an event."""
        if isinstance(item, JobEvent):
            return self._of_job(item)
        if isinstance(item, AssignmentRepeated):
            if not self._has(item.route):
                return []
            again = Hint(
                HintKind.JOB_ASSIGNED,
                item.event_id,
                item.at,
                item.job_id,
                item.queue,
                item.attempt,
                item.worker_id,
                item.route.incarnation,
            )
            return [_message(self.assignments, item.worker_id, again, item.route.partition)]
        if isinstance(item, WorkerEvent):
            told = Hint(
                _OF_WORKERS[item.change],
                item.event_id,
                item.at,
                worker_id=item.worker_id,
                incarnation=item.incarnation,
            )
            return [_message(self.workers, item.worker_id, told)]
        return []

    def _has(self, route: Route) -> bool:
        """A worker may count on more partitions than there are, by its settings. Nothing can be
        said there, and what waits for it would wait for ever: it finds its jobs by itself."""
        return route.partition < self.assignment_partitions

    def _of_job(self, item: JobEvent) -> list[Message]:
        event, route = item.event, item.route
        entered = event.to_state
        incarnation, partition, final = 0, -1, False
        if entered is State.PENDING:
            topic = self.requests
            kind = HintKind.JOB_CREATED if event.from_state is None else HintKind.JOB_REQUEUED
        elif entered is State.ASSIGNED:
            # Without one its worker is connected to a server, which has told it.
            if route is None or not self._has(route):
                return []
            topic, kind = self.assignments, HintKind.JOB_ASSIGNED
            incarnation, partition = route.incarnation, route.partition
        else:
            topic = self.results
            final = entered is State.DEAD_LETTERED
            if entered is State.RUNNING:
                kind = HintKind.JOB_STARTED
            else:
                kind = HintKind.JOB_COMPLETED if entered is State.DONE else HintKind.JOB_FAILED
        hint = Hint(
            kind,
            item.event_id,
            event.at,
            event.job_id,
            event.queue,
            event.attempt,
            event.worker_id or "",
            incarnation,
            final,
        )
        key = event.job_id if partition < 0 else event.worker_id or ""
        return [_message(topic, key, hint, partition)]


def _message(topic: str, key: str, hint: Hint, partition: int = -1) -> Message:
    return Message(topic, key.encode(), encode(hint), hint.event_id, partition, _HEADERS[hint.kind])
