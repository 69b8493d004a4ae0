"""Where an app's backend lives: one per process, on the event loop that opened it.

Calls from that loop go straight to the backend; calls from other loops and threads hop over to
it. An app that nobody closes is closed together with its loop.
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


class _Residence:
    """One opened (or opening) backend and the loop it belongs to."""

    def __init__(self, home: Home, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._home = home
        self._backend: Backend | None = None
        self._opening: asyncio.Task[Backend] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._life: AsyncGenerator[None, None] | None = None

    def ready(self) -> Backend | None:
        """The backend if it is open."""
        return self._backend

    async def backend(self) -> Backend:
        """The backend, opened once however many callers come first together."""
        if self._backend is not None:
            return self._backend
        if self._opening is None:
            self._opening = self.loop.create_task(self._open(), name="jobqueue-open")
        return await asyncio.shield(self._opening)

    async def perform(self, op: Callable[[Backend], Awaitable[T]]) -> T:
        return await op(await self.backend())

    async def close(self) -> None:
        """Stop the backend. Several callers may wait for the one stop."""
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(), name="jobqueue-close")
        await asyncio.shield(self._closing)

    async def _open(self) -> Backend:
        backend: Backend | None = None
        try:
            backend = self._home.create()
            await backend.start()
            await self._home.prepare(backend)
        except BaseException:
            self._home.leave(self)
            if backend is not None:
                await backend.stop()
            raise
        self._life = self._lifetime(backend)
        await anext(self._life)
        self._backend = backend
        return backend

    async def _lifetime(self, backend: Backend) -> AsyncGenerator[None, None]:
        # A loop closes its asynchronous generators before it ends: that stops the backend of an
        # app that was never closed.
        try:
            yield
        finally:
            self._backend = None
            with self._home.ends(self):
                await backend.stop()

    async def _close(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._life is not None:
            await self._life.aclose()
        self._home.leave(self)


class Home:
    """Finds, opens and closes the backend of this process.

    ``orphaned`` says why a child that was forked while the backend was open cannot open its own;
    empty: it can.
    """

    def __init__(
        self,
        create: Callable[[], Backend],
        prepare: Callable[[Backend], Awaitable[None]],
        orphaned: str = "",
    ) -> None:
        self.create = create
        self.prepare = prepare
        self.workers = 0  # that run here: they hold the backend open
        self._orphaned = orphaned
        self._refused = ""
        self._lock = threading.Lock()
        self._residence: _Residence | None = None
        self._ending: set[_Residence] = set()
        FORKS.join(self)

    async def call(self, op: Callable[[Backend], Awaitable[T]]) -> T:
        """Run ``op`` with the backend, on the backend's loop."""
        here = asyncio.get_running_loop()
        residence = self._residence
        if residence is not None and residence.loop is here:
            ready = residence.ready()
            return await (residence.perform(op) if ready is None else op(ready))
        residence = self._settle(here)
        if residence.loop is here:
            return await residence.perform(op)
        return await _hop(residence.loop, residence.perform, op)

    async def iterate(self, op: Callable[[Backend], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Iterate over what ``op`` gives, each step on the backend's loop."""

        async def begin(backend: Backend) -> AsyncIterator[T]:
            return op(backend)

        items = await self.call(begin)
        here, owner = asyncio.get_running_loop(), self.loop
        try:
            while True:
                try:
                    if owner is None or owner is here:
                        item = await anext(items)
                    else:
                        item = await _hop(owner, _step, items)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if isinstance(items, AsyncGenerator):
                if owner is None or owner is here:
                    await items.aclose()
                elif owner.is_running():
                    await _hop(owner, _end, items)

    def raised(self, job_id: str) -> None:
        """Handlers run in workers: nothing but the text of their errors comes here."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The running loop that the backend lives on, if it is open."""
        residence = self._residence
        if residence is None or not residence.loop.is_running():
            return None
        return residence.loop

    async def open(self) -> None:
        """Open the backend now rather than at the first call."""

        async def nothing(_: Backend) -> None:
            pass

        await self.call(nothing)

    async def close(self) -> None:
        """Stop the backend if it is open."""
        residence = self._residence
        if residence is None or residence.loop.is_closed():
            self._residence = None
        elif residence.loop is asyncio.get_running_loop():
            await residence.close()
        elif residence.loop.is_running():
            await _hop(residence.loop, _Residence.close, residence)

    def leave(self, residence: _Residence) -> None:
        """The backend is gone; the next call opens another."""
        with self._lock:
            if self._residence is residence:
                self._residence = None

    @contextmanager
    def ends(self, residence: _Residence) -> Iterator[None]:
        """The backend is stopped inside; a call that comes now opens another."""
        self.leave(residence)
        self._ending.add(residence)
        yield  # if it cannot be stopped, parts of it stay open
        self._ending.discard(residence)

    def _settle(self, here: asyncio.AbstractEventLoop) -> _Residence:
        with self._lock:
            residence = self._residence
            if self._refused:
                raise Conflict(self._refused)
            if residence is None or residence.loop.is_closed():
                residence = self._residence = _Residence(self, here)
            elif residence.loop is not here and not residence.loop.is_running():
                raise Conflict(
                    "the app is open on an event loop that is not running now; "
                    "call `await app.close()` there before using it on another loop"
                )
            return residence

    def before_fork(self) -> bool:
        """A backend belongs to its loop, which cannot be waited for here: ``Bridge`` may."""
        return False

    def after_fork(self) -> None:
        """In a forked child: forget the parent's backend, without touching it."""
        self._lock = threading.Lock()
        self.workers = 0
        inherited, self._ending = self._ending, set()
        if self._residence is not None and not self._residence.loop.is_closed():
            inherited.add(self._residence)
        self._residence = None
        if inherited:
            # Kept alive on purpose: closing an inherited connection would disturb the parent.
            _INHERITED.extend(inherited)
            self._refused = self._orphaned


_INHERITED: list[_Residence] = []

A = TypeVar("A")


async def _hop(
    loop: asyncio.AbstractEventLoop, function: Callable[[A], Awaitable[T]], argument: A
) -> T:
    """Run ``function(argument)`` on another running loop and wait for it here."""

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
        raise OutcomeUnknown("the app was closed while the call was under way") from None


async def _step(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _end(items: AsyncGenerator[T, None]) -> None:
    await items.aclose()
