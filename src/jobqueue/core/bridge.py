"""Run coroutines for the blocking clients, on an event loop in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import concurrent.futures.thread  # before our exit hook below: hooks run last to first
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from jobqueue.core.attempt import in_place
from jobqueue.core.errors import Conflict, Internal, OutcomeUnknown, Unavailable
from jobqueue.core.forking import FORKS, PATIENCE

T = TypeVar("T")

_JOIN_TIMEOUT = 10.0
_LOOK_FOR_SIGNALS = 0.5  # seconds


class LoopThread:
    """Runs an event loop in a background thread."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="jobqueue-sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with self._runner:  # cancels the rest of the tasks at the end
            self.loop.run_forever()

    @property
    def is_here(self) -> bool:
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_JOIN_TIMEOUT)


def _never() -> bool:
    return False


def _nowhere() -> asyncio.AbstractEventLoop | None:
    return None


class Bridge:
    """Runs the coroutines of one app or client for callers in threads without an event loop.

    The bridge starts its own loop thread at the first call that needs it. ``instead`` is the advice
    in the error for a caller whose thread runs an event loop. ``loop`` returns the loop on which
    the app runs already, or None. ``inlined`` returns True if a job runs in the thread that submits
    it. ``pinned`` returns True if the bridge must stay open when the process forks.
    """

    def __init__(
        self,
        *,
        instead: str,
        loop: Callable[[], asyncio.AbstractEventLoop | None] = _nowhere,
        inlined: Callable[[], bool] = _never,
        pinned: Callable[[], bool] = _never,
    ) -> None:
        self._instead = instead
        self._backend_loop = loop
        self._inlined = inlined
        self._pinned = pinned
        self._thread: LoopThread | None = None
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._scheduling = 0  # calls that the lock's holder is about to begin
        self._kept = 0  # ``kept_open`` blocks that run now
        self._users = 0
        _BRIDGES.add(self)
        FORKS.join(self)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's loop, wait for its end, and return its result."""
        inlined = self._inlined()
        if _loop_runs_here():
            if inlined and in_place.get():
                return _run_beside(coroutine)
            coroutine.close()
            raise Conflict(
                "this is the blocking client, and an event loop is running in this thread: "
                f"{self._instead} here"
            )
        if inlined:
            return asyncio.run(coroutine)
        future = self._schedule(coroutine)
        try:
            return _result(future)
        except concurrent.futures.CancelledError:
            raise OutcomeUnknown(
                "the client was closed while the call was under way; the call may have had an"
                " effect"
            ) from None
        except BaseException:
            future.cancel()  # the caller was interrupted; nothing happens if it has ended
            raise

    def run_if_open(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a cleanup coroutine, but only if the app or the bridge has an open event loop.

        At the interpreter's exit the loop may be closed already; then there is nothing to clean up.
        """
        if self._inlined() or self._thread is not None or self._backend_loop() is not None:
            self.run(coroutine)
        else:
            coroutine.close()

    def enter(self) -> None:
        """Count one more ``with`` block that uses the bridge."""
        with FORKS.lock:
            self._users += 1

    def leave(self) -> None:
        """Count one ``with`` block less; close the bridge after the last block."""
        with FORKS.lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close()

    def close(self) -> None:
        """Stop the loop thread, which also stops the backend that runs on its loop."""
        with FORKS.lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Prevent a fork of the process from closing the bridge while the block runs."""
        with FORKS.lock:
            self._kept += 1
        try:
            yield
        finally:
            with FORKS.lock:
                self._kept -= 1

    def before_fork(self) -> bool:
        thread = self._thread
        if thread is None or thread.is_here or self._scheduling or self._kept or self._pinned():
            return False
        if concurrent.futures.wait(list(self._calls), timeout=PATIENCE).not_done:
            return False
        self._thread = None
        thread.stop()
        return True

    def after_fork(self) -> None:
        self._thread = None
        self._calls = set()
        self._scheduling = 0

    def _schedule(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        # ``close`` needs the same lock, so the loop cannot stop while a call is being scheduled.
        with FORKS.lock:
            self._scheduling += 1
            try:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop())
            except RuntimeError:
                coroutine.close()
                raise Unavailable("the client was closed; nothing was sent") from None
            finally:
                self._scheduling -= 1
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._backend_loop()
        if loop is not None:
            return loop
        if self._thread is None:
            self._take(LoopThread())
        assert self._thread is not None
        return self._thread.loop

    def _take(self, thread: LoopThread) -> None:
        if self._thread is None:
            self._thread = thread
        else:  # a signal handler started another thread while this one started
            thread.stop()


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that may block but never suspends, in the caller's thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise Internal("a call in a blocking thread has suspended")


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _result(future: concurrent.futures.Future[T]) -> T:
    """Wait for the result of the future, and let Ctrl-C interrupt the wait."""
    # A signal that arrives just before the thread sleeps does not wake the thread, and Python
    # handles the signal only when the thread runs again. Short waits bound that delay.
    while not future.done():
        with suppress(TimeoutError):
            return future.result(_LOOK_FOR_SIGNALS)
    return future.result()  # also raises a TimeoutError that is the result of the call itself


def _run_beside(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in another thread, and block this thread until it has ended.

    Used by a handler that runs inline in a thread whose event loop is busy with the handler.
    """
    with concurrent.futures.ThreadPoolExecutor(1, "jobqueue-inline") as pool:
        return pool.submit(asyncio.run, coroutine).result()


_BRIDGES: weakref.WeakSet[Bridge] = weakref.WeakSet()


def _close_all() -> None:
    for bridge in list(_BRIDGES):
        bridge.close()


# Registered to run before the atexit functions, where Python allows it: a store may need a thread
# pool to close, and thread pools do not accept work any more when the atexit functions run.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
