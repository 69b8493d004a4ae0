"""Run two threads of a worker beside its event loop: heartbeats, and a watch of the loop.

Both threads run even while a handler blocks the event loop; the watch then logs a warning.
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

_PAUSE = 1.0  # minimum seconds between two heartbeats, unless the interval is shorter
_REST = 10  # the minimum pause is this many times the server's last response time
BLOCKED_AFTER = 1.0  # seconds
_LOOK_EVERY = 0.25
_SAY_EVERY = 60.0  # seconds between two warnings of the same task


class SideThread:
    """Runs a daemon thread beside the event loop that created it."""

    def __init__(self, name: str, log: WorkerLog) -> None:
        self._log = log
        self._halt = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._gone = self._loop.create_future()
        self._thread.start()

    async def stop(self, timeout: float = 2.0) -> None:
        """Tell the thread to end, and wait at most ``timeout`` seconds for its end."""
        self._halt.set()
        if self._gone is not None:
            await asyncio.wait({self._gone}, timeout=timeout)

    def _run(self) -> None:
        """Do the thread's work until ``_halt`` is set."""
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


class UnsentProgress:
    """Holds the latest progress of each attempt that no heartbeat has sent yet.

    Any thread may use this class, because each operation on its dictionary is atomic.
    """

    def __init__(self) -> None:
        self._latest: dict[int, Progress] = {}  # by lease

    def add(self, lease: int, progress: Progress) -> None:
        """Keep this progress for the next heartbeat, instead of an earlier one of the attempt."""
        self._latest[lease] = progress

    def take(self, held: Container[int]) -> dict[int, Progress]:
        """Remove all progress; return the progress of the attempts whose leases are in ``held``."""
        taken: dict[int, Progress] = {}
        for lease in list(self._latest):
            progress = self._latest.pop(lease)  # only the heartbeat's thread removes any
            if lease in held:
                taken[lease] = progress
        return taken

    def give_back(self, taken: Mapping[int, Progress]) -> None:
        """Keep unsent progress for the next heartbeat, unless newer progress exists."""
        for lease, progress in taken.items():
            self._latest.setdefault(lease, progress)


class HeartbeatThread(SideThread):
    """Calls ``beat`` at an interval, or earlier after ``hurry``, and passes the answer to the loop.

    A complete heartbeat lists the leases of all attempts that the worker has. A lease that is
    missing from two complete heartbeats counts as lost. An assigned job needs time to arrive, so
    only heartbeats at the interval are complete, not the earlier ones.
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
        self._beat = (
            beat  # its argument: True if the loop has run since the last complete heartbeat
        )
        self._deliver = deliver
        self._hurried = threading.Event()
        self._awake = True

    def hurry(self) -> None:
        """Send the next heartbeat soon. Any thread may call this method."""
        if not self._hurried.is_set():  # reading the flag is much cheaper than setting it
            self._hurried.set()

    async def stop(self, timeout: float = 2.0) -> None:
        self._halt.set()
        self._hurried.set()
        await super().stop(timeout)

    def _run(self) -> None:
        silent = False  # True if the server did not answer the last heartbeat
        complete_at = time.monotonic() + self._interval
        while not self._halt.wait(self._pause):
            left = complete_at - time.monotonic()
            # A server that does not answer gets no early heartbeats.
            early = left > 0 and (self._halt if silent else self._hurried).wait(left)
            if self._halt.is_set():
                break
            self._hurried.clear()
            if early:
                silent = not self._answered(False, silent)
                continue
            awake, self._awake = self._awake, False
            self._call(self._wake)
            silent = not self._answered(awake, silent)
            complete_at = time.monotonic() + self._interval

    def _answered(self, complete: bool, silent: bool) -> bool:
        """Send a heartbeat and deliver its answer; return False if the heartbeat fails."""
        began = time.monotonic()
        try:
            pulse = self._beat(complete)
        except Exception as error:
            if not silent:
                self._log.warning(
                    "cannot send heartbeats of worker %s to the server: %s; trying again",
                    self._log.worker_id,
                    str(error) or type(error).__name__,
                )
            return False
        took = time.monotonic() - began
        self._pause = min(self._interval, max(_PAUSE, _REST * took))
        if silent:
            self._log.info("the server answers heartbeats of worker %s again", self._log.worker_id)
        self._call(self._deliver, pulse)
        return True

    def _wake(self) -> None:
        self._awake = True


class LoopWatch(SideThread):
    """Logs a warning that names the handler which blocks the event loop.

    The thread schedules a callback on the loop. If the callback does not run, the thread reads
    which handler the loop runs. The loop may be late only because it lacks processor time. The
    thread therefore names a handler only if several checks in a row find the same one.
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
        """Return the execution whose task the loop runs now, or None."""
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
            "task %s has blocked the event loop for %.1f s%s, and no other `async def` task of this"
            " worker runs meanwhile; await slow calls, or make it a `def` task, which runs in a"
            " thread",
            name,
            blocked,
            self._place(execution),
            extra={**execution.log_fields(), "blocked": blocked},
        )

    def _place(self, execution: Execution) -> str:
        """Return the handler's current file and line as text; empty if unknown."""
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
    """Return the frame that runs this code, or the innermost frame if none does.

    The handler's code is not found if the handler is decorated.
    """
    innermost = frame
    while frame is not None:
        if frame.f_code is code:
            return frame
        frame = frame.f_back
    return innermost
