"""Which records go where, under which key."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue.core.lifecycle import State
from jobqueue.core.stream import AssignmentRepeated, JobEvent, QueueEvent, StreamItem, WorkerEvent
from jobqueue.events.codec import encode
from jobqueue.events.dispatch.topics import DispatchTopics
from jobqueue.events.publisher import Message

# Room in a message beside the payload: labels, names, error texts.
MESSAGE_MARGIN = 64 * 1024


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by what they carry."""

    jobs: str = "jq.job-events"  # everything about jobs, by job id
    dead_letters: str = "job.dead-lettered"  # again, those that became dead letters
    queues: str = "jq.queue-events"  # everything about queues, by name
    dispatch: DispatchTopics | None = None  # hints, where workers hear of their jobs by Kafka

    @property
    def all(self) -> tuple[str, ...]:
        """The names of those that are the record, each once."""
        return tuple(dict.fromkeys((self.jobs, self.dead_letters, self.queues)))

    def messages(self, item: StreamItem) -> list[Message]:
        """What is published of a record, and the hints that go with it."""
        if self.dispatch is None:
            return self._records(item)
        return self._records(item) + self.dispatch.messages(item)

    def _records(self, item: StreamItem) -> list[Message]:
        if isinstance(item, WorkerEvent | AssignmentRepeated):
            return []  # hints alone: no job is rebuilt from them
        value = encode(item)
        if isinstance(item, QueueEvent):
            return [Message(self.queues, item.queue.name.encode(), value, item.event_id)]
        if not isinstance(item, JobEvent):
            return [Message(self.jobs, item.job_id.encode(), value, item.event_id)]
        key = item.event.job_id.encode()
        made = [Message(self.jobs, key, value, item.event_id)]
        if item.event.to_state is State.DEAD_LETTERED:
            made.append(Message(self.dead_letters, key, value, item.event_id))
        return made
