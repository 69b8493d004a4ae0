"""The Protocol by which the relay publishes messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jobqueue.core.identity import Writer


class Message(NamedTuple):
    """A record or hint to publish. A tuple, because one is made for each event."""

    topic: str
    key: bytes
    value: bytes
    event_id: str
    partition: int = -1  # -1: by its key
    headers: list[tuple[str, bytes]] | None = None
    at: float | None = None  # the time of its event; None: now


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that is refused however often it is sent."""

    topic: str
    event_id: str
    why: str


class PublishFailed(Exception):
    """Messages may not have been published: close, open, and send again from the mark on."""


class Publisher(Protocol):
    """Publishes messages in order, for one task. It may be opened and closed repeatedly."""

    @property
    def address(self) -> str:
        """The address of the messages' server, for people."""

    @property
    def trouble(self) -> str:
        """The current reason for not publishing; empty: none is known."""

    async def open(self) -> None:
        """Connect and make missing topics; PublishFailed if that takes too long."""

    async def writers(self) -> set[Writer]:
        """Return the writers of the latest records; PublishFailed if they cannot be read."""

    async def probe(self) -> None:
        """Raise PublishFailed if the server does not answer; change nothing."""

    async def close(self) -> None:
        """Drop messages under way, in bounded time. May be called twice, or before open."""

    def send(self, messages: Sequence[Message]) -> asyncio.Future[list[Refused]]:
        """Send messages after those sent before.

        The result comes when every message is safe or refused for ever. It waits while the server
        is away; PublishFailed if waiting is of no use.
        """
