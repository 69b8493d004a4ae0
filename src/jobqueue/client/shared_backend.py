"""Open, share and close the backend of an app: one per process, on one event loop.

The backend belongs to the event loop that opened it. Calls from other loops and threads run on that
loop. If the program never closes the app, the end of the loop closes the backend.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from jobqueue.core.api import Backend
from jobqueue.core.errors import Conflict, OutcomeUnknown, Unavailable
from jobqueue.core.forking import FORKS
from jobqueue.core.waiting import cancel_requested

T = TypeVar("T")


class _OpenedBackend:
    """A backend that is open or being opened, with the event loop to which it belongs."""

    def __init__(self, shared: SharedBackend, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ready: Backend | None = None  # once it is open
        self._shared = shared
        self._opening: asyncio.Task[Backend] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._life: AsyncGenerator[None, None] | None = None

    async def perform(self, op: Callable[[Backend], Awaitable[T]]) -> T:
        """Call ``op`` with the backend, after opening it if necessary.

        Several concurrent callers open the backend only once.
        """
        if self.ready is not None:
            return await op(self.ready)
        if self._opening is None:
            self._opening = self.loop.create_task(self._open(), name="jobqueue-open")
        return await op(await asyncio.shield(self._opening))

    async def close(self) -> None:
        """Stop the backend. Several concurrent callers stop it only once."""
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(), name="jobqueue-close")
        await asyncio.shield(self._closing)

    async def _open(self) -> Backend:
        backend: Backend | None = None
        try:
            backend = self._shared.create()
            await backend.start()
            await self._shared.prepare(backend)
        except BaseException:
            self._shared.leave(self)
            if backend is not None:
                await backend.stop()
            raise
        self._life = self._lifetime(backend)
        await anext(self._life)
        self.ready = backend
        return backend

    async def _lifetime(self, backend: Backend) -> AsyncGenerator[None, None]:
        # A loop closes its asynchronous generators before it ends. This generator then stops the
        # backend of an app that was never closed.
        try:
            yield
        finally:
            self.ready = None
            with self._shared.ends(self):
                await backend.stop()

    async def _close(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._life is not None:
            await self._life.aclose()
        self._shared.leave(self)


class SharedBackend:
    """Opens the backend of this process, runs calls with it, and closes it. Implements ``Port``.

    ``orphaned`` is the error for a child process that was forked while the backend was open. It is
    empty if such a child can open a backend of its own.
    """

    def __init__(
        self,
        create: Callable[[], Backend],
        prepare: Callable[[Backend], Awaitable[None]],
        orphaned: str = "",
    ) -> None:
        self.create = create
        self.prepare = prepare
        self.workers = 0  # workers that run in this process and need the open backend
        self._orphaned = orphaned
        self._refused = ""
        self._lock = threading.Lock()
        self._opened: _OpenedBackend | None = None
        self._ending: set[_OpenedBackend] = set()
        FORKS.join(self)

    async def call(self, op: Callable[[Backend], Awaitable[T]]) -> T:
        here = asyncio.get_running_loop()
        opened = self._opened
        if opened is not None and opened.loop is here:
            ready = opened.ready
            return await (opened.perform(op) if ready is None else op(ready))
        opened = self._settle(here)
        return await _run_on(opened.loop, opened.perform, op)

    async def iterate(self, op: Callable[[Backend], AsyncIterator[T]]) -> AsyncIterator[T]:
        async def begin(backend: Backend) -> AsyncIterator[T]:
            return op(backend)

        items = await self.call(begin)
        owner = self.loop or asyncio.get_running_loop()
        try:
            while True:
                try:
                    item = await _run_on(owner, anext, items)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if isinstance(items, AsyncGenerator) and owner.is_running():
                await _run_on(owner, lambda generator: generator.aclose(), items)

    def raised(self, job_id: str) -> None:
        """Return None, because handlers run in workers and only their error text is known here."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of the open backend; None if it is not open or not running."""
        opened = self._opened
        if opened is None or not opened.loop.is_running():
            return None
        return opened.loop

    async def open(self) -> Backend:
        """Open the backend now, without waiting for the first call, and return it."""

        async def itself(backend: Backend) -> Backend:
            return backend

        return await self.call(itself)

    async def close(self) -> None:
        """Stop the backend if it is open."""
        opened = self._opened
        if opened is None or opened.loop.is_closed():
            self._opened = None
        elif opened.loop.is_running():
            await _run_on(opened.loop, _OpenedBackend.close, opened)

    def leave(self, opened: _OpenedBackend) -> None:
        """Stop using a backend, so that the next call opens a new backend."""
        with self._lock:
            if self._opened is opened:
                self._opened = None

    @contextmanager
    def ends(self, opened: _OpenedBackend) -> Iterator[None]:
        """Track a backend that the caller stops inside this block.

        A call during the block opens a new backend.
        """
        self.leave(opened)
        self._ending.add(opened)
        yield  # if the stop raises, the backend stays in the set, because parts of it are open
        self._ending.discard(opened)

    def _settle(self, here: asyncio.AbstractEventLoop) -> _OpenedBackend:
        with self._lock:
            opened = self._opened
            if self._refused:
                raise Conflict(self._refused)
            if opened is None or opened.loop.is_closed():
                opened = self._opened = _OpenedBackend(self, here)
            elif opened.loop is not here and not opened.loop.is_running():
                raise Conflict(
                    "the app is open on an event loop that is not running now; "
                    "call `await app.close()` there before using it on another loop"
                )
            return opened

    def before_fork(self) -> bool:
        # Only the backend's event loop can close the backend, and a fork cannot wait for that loop.
        # ``Bridge`` closes the backends that run on a bridge's own loop.
        return False

    def after_fork(self) -> None:
        """Drop the parent's backend in a forked child, without using or closing it."""
        self._lock = threading.Lock()
        self.workers = 0
        inherited, self._ending = self._ending, set()
        if self._opened is not None and not self._opened.loop.is_closed():
            inherited.add(self._opened)
        self._opened = None
        if inherited:
            # Kept alive on purpose: closing an inherited connection would disturb the parent.
            _INHERITED.extend(inherited)
            self._refused = self._orphaned


_INHERITED: list[_OpenedBackend] = []

A = TypeVar("A")


async def _run_on(
    loop: asyncio.AbstractEventLoop, function: Callable[[A], Awaitable[T]], argument: A
) -> T:
    """Run ``function(argument)`` on ``loop``, wait for its end on this loop, and return its result.

    ``loop`` must be running.
    """
    if loop is asyncio.get_running_loop():
        return await function(argument)

    async def there() -> T:
        return await function(argument)

    coroutine = there()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise Unavailable("the app was closed; nothing was sent") from None
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if cancel_requested():
            raise
        raise OutcomeUnknown(
            "the app was closed while the call was under way; the call may have had an effect"
        ) from None
