"""A gRPC caller made of HTTP/2 frames: it sends half a message, or never reads an answer.

No client library can be made to behave like that. Only what the tests need is here: the server's
answers are not decoded, and headers are written in the plainest of the ways that HPACK knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType

from tests import patience
from tests.hostile.target import metadata

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW = 4  # a setting: how much may be sent on a new stream
_CANCEL = 8  # why a stream is reset
_FRAME = 16 * 1024  # bytes of data in one frame that every server takes


def message(data: bytes, length: int | None = None) -> bytes:
    """A message as gRPC writes it; ``length`` is what it says of itself if that is not true."""
    size = len(data) if length is None else length
    return b"\0" + size.to_bytes(4, "big") + data


class Frames:
    """One connection. Its own window for answers is closed unless ``reads`` says otherwise."""

    def __init__(
        self, target: str, name: str = "", *, reads: bool = False, source: str = "127.0.0.1"
    ) -> None:
        """Without a ``name`` it shows no key. ``source``: the address that it comes from."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._name = name
        self._reads = reads
        self._source = source
        self._last = -1
        self._initial = 65_535
        self._windows: dict[int, int] = defaultdict(lambda: self._initial)  # 0: the connection's
        self._moved = asyncio.Event()
        self.answered: set[int] = set()  # streams whose answer has begun
        self.ended: set[int] = set()  # streams that the server has ended
        self.received: dict[int, int] = defaultdict(int)  # bytes of answers by stream
        self.closed = False

    async def __aenter__(self) -> Frames:
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, local_addr=(self._source, 0)
        )
        self._writer.write(_PREFACE)
        self._set_window(2**31 - 1 if self._reads else 0)
        self._windows[0] = self._initial
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.cancel()
        self._writer.close()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await self._listening
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def read(self) -> None:
        """Take answers from now on."""
        self._reads = True
        self._set_window(2**31 - 1)

    def _set_window(self, window: int) -> None:
        self._send(_SETTINGS, 0, 0, _INITIAL_WINDOW.to_bytes(2, "big") + window.to_bytes(4, "big"))

    def begin(self, method: str, more: Iterable[tuple[str, str]] = ()) -> int:
        """Send the headers of a call, and more of them; returns its stream."""
        self._last += 2
        fields = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *(metadata(self._name) if self._name else ()),
            *more,
        )
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
        self._send(_HEADERS, _END_HEADERS, self._last, block)
        return self._last

    def reset(self, stream: int) -> None:
        """End a call, as its caller may at any time."""
        self._send(_RESET, 0, stream, _CANCEL.to_bytes(4, "big"))

    async def send(self, stream: int, data: bytes, *, end: bool = False) -> int:
        """Send as much as the server lets in at once; returns how much that was."""
        sent = 0
        while sent < len(data):
            room = min(self._windows[0], self._windows[stream], _FRAME, len(data) - sent)
            if room <= 0:
                break
            for window in (0, stream):
                self._windows[window] -= room
            sent += room
            last = end and sent == len(data)
            self._send(_DATA, _END_STREAM if last else 0, stream, data[sent - room : sent])
        await self._writer.drain()
        return sent

    async def moved(self, seconds: float = 1.0) -> bool:
        """Wait until the server lets more in or ends something; False: it did not."""
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            async with patience.timeout(seconds):
                await self._moved.wait()
                return True
        return False

    async def call(self, method: str, data: bytes) -> int:
        """A whole call with a short message."""
        stream = self.begin(method)
        await self.send(stream, message(data), end=True)
        return stream

    def _send(self, kind: int, flags: int, stream: int, data: bytes) -> None:
        head = len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
        self._writer.write(head + data)

    async def _listen(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                data = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), data)
        except (OSError, asyncio.IncompleteReadError):
            self.closed = True
        finally:
            self._moved.set()

    def _take(self, kind: int, flags: int, stream: int, data: bytes) -> None:
        if kind == _WINDOW:
            self._windows[stream] += int.from_bytes(data, "big")
            self._moved.set()
        elif kind == _SETTINGS and not flags & _ACK:
            self._apply(data)
            self._send(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            self._send(_PING, _ACK, 0, data)
        elif kind == _DATA:
            self.received[stream] += len(data)
            self._moved.set()
            if self._reads and data:
                self._send(_WINDOW, 0, 0, len(data).to_bytes(4, "big"))
        elif kind == _HEADERS:
            self.answered.add(stream)
            self._moved.set()
        elif kind == _GOAWAY:
            self.closed = True
        if kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self.ended.add(stream)
            self._moved.set()

    def _apply(self, settings: bytes) -> None:
        for at in range(0, len(settings), 6):
            value = int.from_bytes(settings[at + 2 : at + 6], "big")
            if int.from_bytes(settings[at : at + 2], "big") == _INITIAL_WINDOW:
                for stream in self._windows:
                    if stream:
                        self._windows[stream] += value - self._initial
                self._initial = value
                self._moved.set()


def _text(text: str) -> bytes:
    """A short text, as it is; "\\udcff" is the byte 0xff, which is no text."""
    data = text.encode(errors="surrogateescape")
    assert len(data) < 127
    return bytes([len(data)]) + data
