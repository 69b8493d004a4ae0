"""The blocking client, for Django, Flask and scripts: one bridge to an event loop in a thread.

Nothing is written twice: every call runs the asynchronous one over there and waits for it here.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import concurrent.futures.thread  # before our exit hook below: hooks run last to first
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from jobqueue.client.handle import JobHandle
from jobqueue.client.tasks import Submitting, Task
from jobqueue.core.attempt import in_place
from jobqueue.core.errors import Conflict, InvalidArgument, OutcomeUnknown, Unavailable
from jobqueue.core.forking import FORKS, PATIENCE
from jobqueue.core.job import Cancellation, Event, Job

if TYPE_CHECKING:
    from jobqueue.client.app import JobQueue

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

_JOIN_TIMEOUT = 10.0
_LOOK_FOR_SIGNALS = 0.5  # seconds


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jobqueue-sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._cancel_rest())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs in this very thread."""
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        """End the loop, and with it what still runs on it."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_JOIN_TIMEOUT)


def _never() -> bool:
    return False


def _nowhere() -> asyncio.AbstractEventLoop | None:
    return None


class Bridge:
    """Runs coroutines from plain threads. One per app or client; its thread starts when needed.

    ``instead`` tells who has an event loop what to do. ``loop`` is where the app lives already, if
    it does; ``inlined``, whether its jobs run where they are submitted; ``pinned``, whether it must
    stay open when the process forks.
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
        self._home_loop = loop
        self._inlined = inlined
        self._pinned = pinned
        self._thread: LoopThread | None = None
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._scheduling = 0  # calls that the lock's holder is about to begin
        self._kept = 0  # blocks that need it open
        self._users = 0
        _BRIDGES.add(self)
        FORKS.join(self)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where the app lives, and wait for it in this thread."""
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
            raise OutcomeUnknown("it was closed while the call was under way") from None
        except BaseException:
            future.cancel()  # the caller was interrupted; nothing happens if it has ended
            raise

    def run_if_open(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """The same for what tidies up: where nothing is open, nothing is to be done.

        It may come from the garbage collector when the interpreter ends and threads cannot start.
        """
        if self._inlined() or self._thread is not None or self._home_loop() is not None:
            self.run(coroutine)
        else:
            coroutine.close()

    def enter(self) -> None:
        """One more ``with`` block uses the bridge."""
        with FORKS.lock:
            self._users += 1

    def leave(self) -> None:
        """A ``with`` block ends; the last one closes what the bridge has opened."""
        with FORKS.lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close()

    def close(self) -> None:
        """End the thread; the backend that lives on it is stopped with its loop."""
        with FORKS.lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """A fork does not close it while the block runs, though no call may be under way."""
        with FORKS.lock:
            self._kept += 1
        try:
            yield
        finally:
            with FORKS.lock:
                self._kept -= 1

    def before_fork(self) -> bool:
        """Close it if nothing is under way; the next call, in parent or child, opens it again."""
        thread = self._thread
        if thread is None or thread.is_here or self._scheduling or self._kept or self._pinned():
            return False
        if concurrent.futures.wait(list(self._calls), timeout=PATIENCE).not_done:
            return False
        self._thread = None
        thread.stop()
        return True

    def after_fork(self) -> None:
        """In a forked child there is no thread."""
        self._thread = None
        self._calls = set()
        self._scheduling = 0

    def _schedule(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        # Under the lock that ``close`` takes: what is scheduled here comes before the loop's end.
        with FORKS.lock:
            self._scheduling += 1
            try:
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop())
            except RuntimeError:
                coroutine.close()
                raise Unavailable("it was closed; nothing was sent") from None
            finally:
                self._scheduling -= 1
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = self._home_loop()
        if loop is not None:
            return loop
        if self._thread is None:
            self._take(LoopThread())
        assert self._thread is not None
        return self._thread.loop

    def _take(self, thread: LoopThread) -> None:
        if self._thread is None:
            self._thread = thread
        else:  # a signal handler, while this one started, was quicker
            thread.stop()


class SyncJob(Generic[R_co]):
    """A JobHandle whose calls block."""

    def __init__(self, bridge: Bridge, handle: JobHandle[R_co]) -> None:
        self._bridge = bridge
        self._handle = handle

    def __repr__(self) -> str:
        return f"<SyncJob {self.id}>"

    @property
    def id(self) -> str:
        """The job's id."""
        return self._handle.id

    @property
    def created(self) -> bool:
        """False if an earlier submit with the same key had made the job already."""
        return self._handle.created

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job's end and return what its handler returned."""
        return self._bridge.run(self._handle.result(timeout))

    def status(self) -> Job:
        """The job's record as it is now."""
        return self._bridge.run(self._handle.status())

    def cancel(self) -> Cancellation:
        """Cancel the job."""
        return self._bridge.run(self._handle.cancel())

    def retry(self) -> Job:
        """Send a job that failed back to its queue."""
        return self._bridge.run(self._handle.retry())

    def events(self) -> Iterator[Event]:
        """The job's transitions, past ones first, then as they happen, until its end."""
        events = self._handle.events()

        async def step() -> Event | None:
            return await anext(events, None)

        with self._bridge.kept_open():
            try:
                while (event := self._bridge.run(step())) is not None:
                    yield event
            finally:
                if isinstance(events, AsyncGenerator):
                    self._bridge.run_if_open(events.aclose())


class SyncQueue:
    """The blocking side of an app. Safe to share between threads, and with forked processes.

    ``with app.sync() as q:`` closes what it has opened when the last such block ends. A web
    application keeps one ``q = app.sync()`` for its life; that is closed when the process exits.
    """

    def __init__(self, bridge: Bridge, app: JobQueue) -> None:
        self._bridge = bridge
        self._app = app

    def submit(
        self, task: Task[Any, Callable[P, Submitting[R]]], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJob[R]:
        """Submit a call of a task: ``q.submit(send, "a@b.c", "hello")``."""
        _check_task(task)
        return SyncJob(self._bridge, self.run(task.submit(*args, **kwargs)))

    def submit_many(
        self, task: Task[Any, Callable[..., Submitting[R]]], calls: Iterable[tuple[Any, ...]]
    ) -> list[SyncJob[R]]:
        """Submit many calls of a task, each given as a tuple of arguments."""
        _check_task(task)
        handles = self.run(task.submit_many(calls))
        return [SyncJob(self._bridge, handle) for handle in handles]

    def job(self, job_id: str) -> SyncJob[Any]:
        """A handle on a job submitted earlier."""
        return SyncJob(self._bridge, self._app.job(job_id))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for any coroutine of the app: ``q.run(app.operator.list_queues())``."""
        return self._bridge.run(coroutine)

    def close(self) -> None:
        """Close what the blocking side has opened."""
        self._bridge.close()

    def __enter__(self) -> SyncQueue:
        self._bridge.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bridge.leave()


def _check_task(task: object) -> None:
    """A name or a plain function has no ``submit``, and Python's error would not say more."""
    if not hasattr(task, "submit"):
        shown = getattr(task, "__name__", None) or repr(task)
        raise InvalidArgument("task", f"{shown} is not a task: give what @app.task made")


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _result(future: concurrent.futures.Future[T]) -> T:
    """Wait for a result, or for Ctrl-C.

    A signal that comes a moment before a thread goes to sleep does not wake it: Python only notes
    the signal. A wait without an end would never look at the note.
    """
    while not future.done():
        with suppress(TimeoutError):
            return future.result(_LOOK_FOR_SIGNALS)
    return future.result()  # its own TimeoutError, too


def _run_beside(coroutine: Coroutine[Any, Any, T]) -> T:
    """A handler that runs inline, on its caller's loop, uses the blocking client itself."""
    with concurrent.futures.ThreadPoolExecutor(1, "jobqueue-inline") as pool:
        return pool.submit(asyncio.run, coroutine).result()


_BRIDGES: weakref.WeakSet[Bridge] = weakref.WeakSet()


def _close_all() -> None:
    for bridge in list(_BRIDGES):
        bridge.close()


# Earlier than atexit where that exists: thread pools cannot be used any more when atexit runs,
# and a store may need one to close.
getattr(threading, "_register_atexit", atexit.register)(_close_all)
