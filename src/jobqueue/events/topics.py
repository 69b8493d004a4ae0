"""Which records go where, under which key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobqueue.core.identity import Identity
from jobqueue.core.lifecycle import State
from jobqueue.core.stream import AssignmentRepeated, JobEvent, QueueEvent, StreamItem, WorkerEvent
from jobqueue.events import headers
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

    def of_store(self, identity: Identity) -> Callable[[StreamItem], list[Message]]:
        """What a store publishes of its records, and the hints that go with them."""
        dispatch, shared = self.dispatch, headers.of_store(identity)

        def messages(item: StreamItem) -> list[Message]:
            found = self._records(item, shared)
            return found if dispatch is None else found + dispatch.messages(item)

        return messages

    def _records(self, item: StreamItem, shared: headers.Headers) -> list[Message]:
        if isinstance(item, WorkerEvent | AssignmentRepeated):
            return []  # hints alone: no job is rebuilt from them
        value, name = encode(item), item.event_id
        if isinstance(item, JobEvent):
            topic, key, at = self.jobs, item.event.job_id, item.event.at
        elif isinstance(item, QueueEvent):
            topic, key, at = self.queues, item.queue.name, item.at
        else:
            topic, key, at = self.jobs, item.job_id, item.at
        told = shared + headers.of_record(item, name, at)
        made = [Message(topic, key.encode(), value, name, headers=told, at=at)]
        if isinstance(item, JobEvent) and item.event.to_state is State.DEAD_LETTERED:
            letter = encode(item, letter=True)
            made.append(made[0]._replace(topic=self.dead_letters, value=letter))
        return made
