"""Defines Publisher, the Protocol by which the relay publishes messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jobqueue.core.identity import Writer


class Message(NamedTuple):
    """A record or hint to publish.

    A named tuple is cheap to create, and every event needs a message.
    """

    topic: str
    key: bytes
    value: bytes
    event_id: str
    partition: int = -1  # -1: chosen by the key
    headers: list[tuple[str, bytes]] | None = None
    at: float | None = None  # the time of the event; None: now


@dataclass(frozen=True, slots=True)
class Refused:
    """Describes a message that the server refuses for good: a repetition would not help."""

    topic: str
    event_id: str
    why: str


class PublishFailed(Exception):
    """Raised when messages may not have been published.

    The caller closes and opens the publisher, and sends again all changes after the relay's mark
    (the position up to which changes are published).
    """


class Publisher(Protocol):
    """Publishes messages in order, for one asyncio task. May be opened and closed repeatedly."""

    @property
    def address(self) -> str:
        """Return the address of the message server, for logs and the status."""

    @property
    def trouble(self) -> str:
        """Return the reason why nothing can be published now, or "" if no reason is known."""

    async def open(self) -> None:
        """Connect and create missing topics. Raise PublishFailed if the server does not answer."""

    async def writers(self) -> set[Writer]:
        """Return the stores that wrote the latest records.

        Raise PublishFailed if the records cannot be read.
        """

    async def probe(self) -> None:
        """Check that the server answers, without any change; raise PublishFailed if it does not."""

    async def close(self) -> None:
        """Drop all messages under way, in bounded time.

        ``close`` may be called twice, and before ``open``.
        """

    def send(self, messages: Sequence[Message]) -> asyncio.Future[list[Refused]]:
        """Send messages, after the messages of earlier calls; return the refused messages.

        The future is done when every message is either stored safely or refused for good. While the
        server is unreachable, the future waits. It raises PublishFailed if waiting does not help.
        """
