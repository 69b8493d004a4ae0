"""The worker's two threads beside the event loop: heartbeats, and the watch of a blocked loop.

Both go on while a handler blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable, Container, Mapping
from types import CodeType, FrameType

from jobqueue.core.job import Pulse
from jobqueue.core.progress import Progress
from jobqueue.worker.execution import Execution
from jobqueue.worker.log import WorkerLog

_PAUSE = 1.0  # the least seconds between two heartbeats, unless the interval is shorter
_REST = 10  # a pause lasts this many times the last answer's time, to spare a slow server
BLOCKED_AFTER = 1.0  # seconds
_LOOK_EVERY = 0.25
_SAY_EVERY = 60.0  # for the same task


class SideThread:
    """A daemon thread beside the event loop that creates it."""

    def __init__(self, name: str, log: WorkerLog) -> None:
        self._log = log
        self._halt = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self._gone = self._loop.create_future()
        self._thread.start()

    async def stop(self, timeout: float = 2.0) -> None:
        """Ask the thread to end, and wait for it at most ``timeout`` seconds."""
        self._halt.set()
        if self._gone is not None:
            await asyncio.wait({self._gone}, timeout=timeout)

    def _run(self) -> None:
        """The thread's work, until ``_halt`` is set."""
        raise NotImplementedError

    def _main(self) -> None:
        self._run()
        self._call(self._leave)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *args)

    def _leave(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


class ProgressNews:
    """The latest progress of each attempt that no heartbeat has reported. Usable from any thread.

    Each operation on the dictionary is atomic.
    """

    def __init__(self) -> None:
        self._latest: dict[int, Progress] = {}  # by lease

    def add(self, lease: int, progress: Progress) -> None:
        self._latest[lease] = progress

    def take(self, held: Container[int]) -> dict[int, Progress]:
        """Remove all news, and return those of attempts that are held."""
        taken: dict[int, Progress] = {}
        for lease in list(self._latest):
            progress = self._latest.pop(lease)  # only the heartbeat's thread removes any
            if lease in held:
                taken[lease] = progress
        return taken

    def give_back(self, taken: Mapping[int, Progress]) -> None:
        """Keep news whose heartbeat failed for the next one, except where newer ones came."""
        for lease, progress in taken.items():
            self._latest.setdefault(lease, progress)


class HeartbeatThread(SideThread):
    """Calls ``beat`` at an interval, or earlier for news, and hands its answer to the loop.

    A complete heartbeat lists all leases held, and is sent at the interval only: a job on its way
    to the worker has two intervals to arrive before it counts as lost. An early heartbeat is not
    complete.
    """

    def __init__(
        self,
        log: WorkerLog,
        interval: float,
        beat: Callable[[bool], Pulse],
        deliver: Callable[[Pulse], None],
    ) -> None:
        super().__init__("worker-heartbeat", log)
        self._interval = interval
        self._pause = min(interval, _PAUSE)  # before the next heartbeat
        self._beat = beat  # its argument: the loop has run since the last complete heartbeat
        self._deliver = deliver
        self._news = threading.Event()
        self._awake = True

    def hurry(self) -> None:
        """Send the next heartbeat soon. Usable from any thread."""
        if not self._news.is_set():  # asking is much cheaper
            self._news.set()

    async def stop(self, timeout: float = 2.0) -> None:
        self._halt.set()
        self._news.set()
        await super().stop(timeout)

    def _run(self) -> None:
        silent = False  # the server did not answer the last heartbeat
        complete_at = time.monotonic() + self._interval
        while not self._halt.wait(self._pause):
            left = complete_at - time.monotonic()
            # A server that does not answer gets no early heartbeats.
            early = left > 0 and (self._halt if silent else self._news).wait(left)
            if self._halt.is_set():
                break
            self._news.clear()
            if early:
                silent = not self._answered(False, silent)
                continue
            awake, self._awake = self._awake, False
            self._call(self._wake)
            silent = not self._answered(awake, silent)
            complete_at = time.monotonic() + self._interval

    def _answered(self, complete: bool, silent: bool) -> bool:
        """Send a heartbeat and deliver its answer; False if there is none."""
        began = time.monotonic()
        try:
            pulse = self._beat(complete)
        except Exception as error:
            if not silent:
                self._log.warning("heartbeat failed: %s", error)
            return False
        took = time.monotonic() - began
        self._pause = min(self._interval, max(_PAUSE, _REST * took))
        if silent:
            self._log.info("heartbeats are answered again")
        self._call(self._deliver, pulse)
        return True

    def _wake(self) -> None:
        self._awake = True


class LoopWatch(SideThread):
    """Names the task that blocks the event loop, while it does.

    The thread asks the loop for an answer, and looks at the running handler if none comes. A loop
    that is short of processor time is not the handler's fault, so the same handler must be seen
    at every look.
    """

    def __init__(self, log: WorkerLog, running: Callable[[], list[Execution]]) -> None:
        super().__init__("worker-loop-watch", log)
        self._running = running
        self._answered = True
        self._said: dict[str, float] = {}  # type -> time of its last warning
        self._loop_thread = threading.get_ident()

    def _run(self) -> None:
        asked_at = time.monotonic()
        suspect: Execution | None = None
        while not self._halt.wait(_LOOK_EVERY):
            if self._answered:
                self._answered, suspect, asked_at = False, None, time.monotonic()
                self._call(self._answer)
                continue
            at_work = self._at_work()
            if suspect is None:
                suspect = at_work
            if at_work is None or at_work is not suspect:
                asked_at, suspect = time.monotonic(), at_work
            elif (blocked := time.monotonic() - asked_at) >= BLOCKED_AFTER:
                self._say(at_work, blocked)

    def _at_work(self) -> Execution | None:
        """The execution whose task the loop runs now."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        return next((e for e in self._running() if e.handle is task), None)

    def _say(self, execution: Execution, blocked: float) -> None:
        job, now = execution.assignment, time.monotonic()
        name = execution.definition.name if execution.definition else job.type
        if now - self._said.get(name, -_SAY_EVERY) < _SAY_EVERY:
            return
        self._said[name] = now
        self._log.warning(
            "task %s blocks the event loop, for %.1f s so far%s: no other `async def` task of this"
            " worker runs meanwhile; await what takes long, or make it a `def` task, which runs in"
            " a thread",
            name,
            blocked,
            self._place(execution),
            extra={**execution.log_fields(), "blocked": blocked},
        )

    def _place(self, execution: Execution) -> str:
        """The handler's current file and line."""
        frame = sys._current_frames().get(self._loop_thread)
        fn = execution.definition.fn if execution.definition else None
        found = _frame_of(frame, getattr(fn, "__code__", None))
        if found is None:
            return ""
        file, line = found.f_code.co_filename, found.f_lineno
        source = linecache.getline(file, line).strip()
        return f", at {os.path.basename(file)}:{line}" + (f" ({source})" if source else "")

    def _answer(self) -> None:
        self._answered = True


def _frame_of(frame: FrameType | None, code: CodeType | None) -> FrameType | None:
    """The frame that runs the handler's code, or the innermost one for a decorated handler."""
    innermost = frame
    while frame is not None:
        if frame.f_code is code:
            return frame
        frame = frame.f_back
    return innermost
