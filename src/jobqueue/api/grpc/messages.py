"""Read and write the messages of gRPC calls and streams.

Reading a call's request has a time limit. The bytes of messages count against their caller's limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import grpc.aio

from jobqueue.access.budgets import MessageBytes
from jobqueue.api.grpc.calls import end
from jobqueue.api.grpc.channel import KIB, STREAM_OPEN
from jobqueue.api.grpc.counting import RefusedRequest
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.waiting import LONG, turn

# The most seconds for receiving a call's message: 16 MiB over a slow link need a while. The limit
# is shorter while other callers wait for memory.
LONGEST = 120.0
LONGEST_IF_SCARCE = 10.0
# Messages of unauthenticated callers are short and arrive with the headers of the call.
LONGEST_OPEN = 10.0
LONGEST_OPEN_IF_WANTED = 0.5
_LOOK = 5.0
_LOOK_IF_OPEN = 0.25

_COPIES = 2  # of a message in memory: one of gRPC and ours
_SMALL = 4 * KIB  # bytes of shorter messages are not counted: the number of calls has a limit
_RESULT_BYTES = 512  # most bytes of the answer to one item of a batch; errors are short

Request = TypeVar("Request")
Response = TypeVar("Response")


def weight(size: int) -> int:
    """Return the bytes to count for a message of ``size`` bytes: two copies; 0 if it is short."""
    return 0 if size < _SMALL else _COPIES * size


def results_weight(results: int) -> int:
    """Return the most bytes to count for an answer with ``results`` results."""
    return weight(results * _RESULT_BYTES)


async def take_room(room: MessageBytes, account: str, amount: int) -> int:
    """Wait until the caller may have another message; count ``amount`` bytes and return them."""
    if not room.take(account):
        await room.wait(account)
    return room.change(account, room.largest, amount)


class TimedReader:
    """Reads the only message of a call, and ends calls whose message does not arrive in time."""

    def __init__(self, room: MessageBytes, *, is_open: bool = False) -> None:
        """Read messages within the limits of ``room``.

        ``is_open`` sets the time limits for unauthenticated callers, whose messages are short.
        """
        self._room = room
        self._is_open = is_open
        # When each task began to read; the oldest is first.
        self._since: dict[asyncio.Task[Any], float] = {}
        self._late: dict[asyncio.Task[Any], float] = {}  # the time limit that each late task had
        # One timer for all calls, because nearly every message has arrived before it is read.
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, context: Any) -> Any:
        """Return the call's message as bytes, or as an object if gRPC parses it."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        self._since[task] = loop.time()
        if self._timer is None:
            self._look_later(loop)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if task not in self._late or task.uncancel():
                raise
            raise Unavailable(f"the request did not arrive within {self._late[task]:g} s") from None
        finally:
            del self._since[task]
            self._late.pop(task, None)
        if message is grpc.aio.EOF:
            raise InvalidArgument("request", "is missing")
        return message

    def _look(self) -> None:
        self._timer = None
        if not self._since:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        longest = self._longest()
        for task, since in self._since.items():
            if now - since < longest:
                break
            if task not in self._late:
                self._late[task] = longest
                task.cancel()
        self._look_later(loop)

    def _longest(self) -> float:
        if self._is_open:
            return LONGEST_OPEN_IF_WANTED if self._room.wanted else LONGEST_OPEN
        return LONGEST_IF_SCARCE if self._room.scarce else LONGEST

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = _LOOK_IF_OPEN if self._is_open else _LOOK
        self._timer = loop.call_later(pause, self._look)


class Packed(NamedTuple):
    """Holds the bytes of a message, and the number of bytes to count for the message."""

    data: bytes
    weight: int


class Duplex(Generic[Request, Response]):
    """A gRPC stream with messages both ways. Methods get it in place of gRPC's iterator.

    A message's bytes count only when the whole message has arrived, because gRPC hides its parts.
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
        self._last = 0  # counted bytes of the message that was read last
        self._held = 0  # counted bytes of the last message and of kept messages
        self._unsent = 0  # counted bytes of messages to send
        self._all_sent = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Tell the client that the stream was accepted, before any message is sent."""
        await self._context.send_initial_metadata((STREAM_OPEN,))

    async def read(self) -> Request | None:
        """Return the next message, or None when the client has ended its side.

        Wait first until the caller's limit allows another message. The message's bytes count until
        the next read.
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
        if isinstance(message, RefusedRequest):
            raise message.error
        return message  # type: ignore[no-any-return]

    def keep(self) -> int:
        """Count the last message's bytes until ``forget`` is called with the returned number."""
        kept, self._last = self._last, 0
        return kept

    def forget(self, kept: int) -> None:
        """Stop counting a message's bytes. ``kept`` is the number that ``keep`` returned."""
        if kept and not self._closed:
            self._held -= kept
            self._requests.change(self._account, kept, 0)

    async def room_for(self, results: int) -> int:
        """Wait until the caller's limit allows an answer with ``results`` results.

        Count the most bytes that the answer can have, and return them. Call this method before the
        work changes anything: a change that has happened must be answered.
        """
        most = results_weight(results)
        if most:
            await take_room(self._answers, self._account, most)
            self._unsent += most
        return most

    def pack(self, message: Response, taken: int = 0) -> Packed:
        """Serialize an answer, and count its real size in place of the ``taken`` bytes."""
        data = self._serialize(message)
        size = weight(len(data))
        if size != taken and not self._closed:
            self._unsent += self._answers.change(self._account, taken, size) - taken
        return Packed(data, size)

    async def send(self, packed: Packed) -> None:
        """Send a serialized answer. Only one task may send at a time."""
        try:
            await self._context.write(packed.data)
        except Exception as error:  # gRPC raises several kinds when a caller has left
            raise Unavailable("the stream has ended") from error
        self._count_sent(packed.weight)

    async def write(self, message: Response) -> None:
        """Serialize and send a message. Only one task may send at a time."""
        await self.send(self.pack(message))

    def count_unsent(self, amount: int) -> None:
        """Add ``amount`` to the bytes that wait to be sent. A negative amount means bytes sent."""
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
        """Return True if more messages may wait to be sent on this stream.

        All streams of a caller share one limit, and a stream that its client does not read may use
        up the limit. So that the other streams go on, each may always have one waiting message.
        """
        return not self._unsent or self._answers.has_room(self._account)

    @property
    def caller_has_room(self) -> bool:
        """Return True if the caller's limit allows another answer, on any stream."""
        return self._answers.has_room(self._account)

    async def until_room(self) -> None:
        """Wait until ``has_room`` is True."""
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
        """Stop counting the bytes of all messages of this stream, because the stream has ended."""
        self._closed = True
        if self._held:
            self._requests.change(self._account, self._held, 0)
        if self._unsent:
            self._answers.change(self._account, self._unsent, 0)
