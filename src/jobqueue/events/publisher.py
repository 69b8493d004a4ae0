"""What the relay asks of whoever takes its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jobqueue.core.identity import Writer


class Message(NamedTuple):
    """A record on its way. A tuple: one is made for each event."""

    topic: str
    key: bytes
    value: bytes
    event_id: str
    partition: int = -1  # -1: by its key
    headers: list[tuple[str, bytes]] | None = None
    at: float | None = None  # when it happened; None: now


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that will not be taken however often it is sent."""

    topic: str
    event_id: str
    why: str


class PublishFailed(Exception):
    """Messages may not have been taken: close, open, and send them again from the mark on."""


class Publisher(Protocol):
    """Takes messages in order. Used by one task; opened and closed any number of times."""

    @property
    def address(self) -> str:
        """Where messages go, for people."""
        ...

    @property
    def trouble(self) -> str:
        """What keeps it from taking messages now; empty: nothing known."""
        ...

    async def open(self) -> None:
        """Connect and make what is missing; PublishFailed if that cannot be done in time."""
        ...

    async def writers(self) -> set[Writer]:
        """Who wrote the latest records that are there; PublishFailed if that cannot be seen."""
        ...

    async def probe(self) -> None:
        """Look whether anybody answers there, and change nothing; else PublishFailed."""
        ...

    async def close(self) -> None:
        """Drop what is under way, in bounded time. May be called twice, or before open."""
        ...

    def send(self, messages: Sequence[Message]) -> asyncio.Future[list[Refused]]:
        """Send after what was sent before.

        Done when every message is safe or refused for good. As long as the other side is away it
        waits; PublishFailed when waiting is of no use.
        """
        ...
