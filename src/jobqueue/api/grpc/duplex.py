"""A stream of messages both ways, whose bytes count for its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import grpc.aio

from jobqueue.access.budgets import MessageBytes
from jobqueue.api.grpc.calls import end
from jobqueue.api.grpc.channel import KIB, STREAM_OPEN
from jobqueue.api.grpc.counting import Refused
from jobqueue.core.errors import Unavailable
from jobqueue.core.waiting import LONG, turn

_COPIES = 2  # of a message in memory: gRPC's and ours
_SMALL = 4 * KIB  # messages below that are not counted by their bytes: there are only so many calls
_RESULT_BYTES = 512  # what the answer to one item of a batch may take; errors quote short texts

Request = TypeVar("Request")
Response = TypeVar("Response")


def weight(size: int) -> int:
    """What a message of so many bytes takes in memory, as far as it counts."""
    return 0 if size < _SMALL else _COPIES * size


def results_weight(results: int) -> int:
    """What an answer with so many results may take."""
    return weight(results * _RESULT_BYTES)


async def take_room(room: MessageBytes, account: str, amount: int) -> int:
    """Wait until a caller may have another message, then take this much; returns it."""
    if not room.take(account):
        await room.wait(account)
    return room.change(account, room.largest, amount)


class Packed(NamedTuple):
    """A message as it is sent, and what it takes."""

    data: bytes
    weight: int


class Duplex(Generic[Request, Response]):
    """What the door gives to a method in place of gRPC's iterator.

    A message counts from the time it is there: gRPC does not show the half of one.
    """

    def __init__(
        self,
        context: Any,
        parse: Callable[[bytes], Any],
        serialize: Callable[[Response], bytes],
        requests: MessageBytes,
        answers: MessageBytes,
        account: str,
    ) -> None:
        self._context = context
        self._parse = parse
        self._serialize = serialize
        self._requests = requests
        self._answers = answers
        self._account = account
        self._last = 0  # what the message that was read last takes
        self._held = 0  # by that one, and by those that are kept
        self._unsent = 0
        self._all_sent = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Tell the client that the stream is there before the first message is."""
        await self._context.send_initial_metadata((STREAM_OPEN,))

    async def read(self) -> Request | None:
        """The next message, None when the client has ended its side.

        It is read when the caller's other messages leave room, and counts until the next read.
        """
        self.forget(self.keep())
        if not self._requests.has_room(self._account):
            await take_room(self._requests, self._account, 0)
        data = await self._context.read()
        if data is grpc.aio.EOF:
            return None
        size = weight(len(data))
        if size:
            self._last = self._requests.change(self._account, 0, size)
            self._held += size
        if len(data) > LONG:
            await turn()
        message = self._parse(data)
        if isinstance(message, Refused):
            raise message.error
        return message  # type: ignore[no-any-return]

    def keep(self) -> int:
        """Let the last message count until ``forget`` is told what this returns."""
        kept, self._last = self._last, 0
        return kept

    def forget(self, kept: int) -> None:
        """A message is not needed any more."""
        if kept and not self._closed:
            self._held -= kept
            self._requests.change(self._account, kept, 0)

    async def room_for(self, results: int) -> int:
        """Wait until an answer with so many results has room; returns what it takes of it.

        To be called before the work has an effect: nothing is refused after it.
        """
        most = results_weight(results)
        if most:
            await take_room(self._answers, self._account, most)
            self._unsent += most
        return most

    def pack(self, message: Response, taken: int = 0) -> Packed:
        """The bytes of an answer, in the place of the room that was taken for it."""
        data = self._serialize(message)
        size = weight(len(data))
        if size != taken and not self._closed:
            self._unsent += self._answers.change(self._account, taken, size) - taken
        return Packed(data, size)

    async def send(self, packed: Packed) -> None:
        """Send an answer; one writer at a time."""
        try:
            await self._context.write(packed.data)
        except Exception as error:  # gRPC has several for a caller that has left
            raise Unavailable("the stream has ended") from error
        self._count_sent(packed.weight)

    async def write(self, message: Response) -> None:
        """Send a message; one writer at a time."""
        await self.send(self.pack(message))

    def count_unsent(self, amount: int) -> None:
        """So many bytes more wait to be sent; less, if the amount is below 0."""
        if amount < 0:
            self._count_sent(-amount)
        elif amount and not self._closed:
            self._unsent += amount
            self._answers.change(self._account, 0, amount)

    def _count_sent(self, amount: int) -> None:
        if amount and not self._closed:
            self._unsent -= amount
            self._answers.change(self._account, amount, 0)
            if not self._unsent:
                self._all_sent.set()

    @property
    def has_room(self) -> bool:
        """Whether more may wait to be sent.

        Where nothing does, always: a caller's stream that is not read must not stop its others.
        """
        return not self._unsent or self._answers.has_room(self._account)

    @property
    def caller_has_room(self) -> bool:
        """Whether the caller may have another answer, whatever of this stream waits."""
        return self._answers.has_room(self._account)

    async def until_room(self) -> None:
        """Wait until more may wait to be sent."""
        self._all_sent.clear()
        if self.has_room:
            return
        ways = [
            asyncio.create_task(take_room(self._answers, self._account, 0)),
            asyncio.create_task(self._all_sent.wait()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*ways)

    def close(self) -> None:
        """The stream has ended: nothing of it counts any more."""
        self._closed = True
        if self._held:
            self._requests.change(self._account, self._held, 0)
        if self._unsent:
            self._answers.change(self._account, self._unsent, 0)
