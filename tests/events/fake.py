"""A publisher that does as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jobqueue.core.identity import Writer
from jobqueue.core.stream import JobEvent, StreamItem
from jobqueue.events.codec import decode, writer_of
from jobqueue.events.publisher import Message, PublishFailed, Refused
from jobqueue.events.topics import Topics
from tests import patience

PATIENCE = 20.0


class FakePublisher:
    """Keeps what it takes, in order. ``log`` outlives any number of lives."""

    address = "nowhere:1"

    def __init__(self) -> None:
        self.log: list[Message] = []
        self.trouble = ""
        self.away = False  # takes messages, and answers nothing
        self.broken = 0  # so many times more it fails
        self.refuses: Callable[[Message], bool] = lambda message: False
        self.unreachable = False
        self.opened = 0
        self.probed = 0
        self._held: list[tuple[asyncio.Future[list[Refused]], Sequence[Message]]] = []

    async def open(self) -> None:
        self.opened += 1
        if self.unreachable:
            raise PublishFailed("connection refused")

    async def writers(self) -> set[Writer]:
        latest = {message.topic: writer_of(message.headers) or Writer() for message in self.log}
        return {writer for topic, writer in latest.items() if topic in Topics().all}

    async def probe(self) -> None:
        self.probed += 1
        if self.unreachable:
            raise PublishFailed("connection refused")

    async def close(self) -> None:
        for waiting, _ in self._held:
            waiting.cancel()
        self._held.clear()

    def send(self, messages: Sequence[Message]) -> asyncio.Future[list[Refused]]:
        waiting: asyncio.Future[list[Refused]] = asyncio.get_running_loop().create_future()
        if self.broken:
            self.broken -= 1
            waiting.set_exception(PublishFailed("the cable is cut"))
        elif self.away:
            self._held.append((waiting, messages))
        else:
            self._take(waiting, messages)
        return waiting

    @property
    def held(self) -> list[Sequence[Message]]:
        """What was sent while it was away."""
        return [messages for _, messages in self._held]

    def come_back(self, taking: int = 1_000) -> None:
        """Take the first of what was sent, and fail with the rest."""
        self.away, self.trouble = False, ""
        for n, (waiting, messages) in enumerate(self._held):
            if n < taking:
                self._take(waiting, messages)
            else:
                waiting.set_exception(PublishFailed("the cable is cut"))
        self._held.clear()

    def _take(self, waiting: asyncio.Future[list[Refused]], messages: Sequence[Message]) -> None:
        refused = [
            Refused(message.topic, message.event_id, "too large")
            for message in messages
            if self.refuses(message)
        ]
        self.log += [message for message in messages if not self.refuses(message)]
        waiting.set_result(refused)

    # -- what a reader of the topics makes of it -----------------------------------------------

    def items(self, *topics: str) -> list[StreamItem]:
        """Every record once, in order, of all topics or of these."""
        seen: set[tuple[str, str]] = set()
        found: list[StreamItem] = []
        for message in self.log:
            if topics and message.topic not in topics:
                continue
            if (message.topic, message.event_id) not in seen:
                seen.add((message.topic, message.event_id))
                found.append(decode(message.value))
        return found

    def event_ids(self, topic: str = "jq.job-events") -> list[str]:
        return [item.event_id for item in self.items(topic) if isinstance(item, JobEvent)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, but not for ever."""
    limit = patience.Limit(PATIENCE)
    while not condition():
        assert not limit.over, "it did not happen in time"
        await asyncio.sleep(0.01)
