"""Names the task that blocks the event loop, while it does."""

from __future__ import annotations

import asyncio
import contextlib
import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

from jobqueue.worker.execution import Execution

log = logging.getLogger("jobqueue.worker")

BLOCKED_AFTER = 1.0  # seconds
_LOOK_EVERY = 0.25
_SAY_EVERY = 60.0  # for the same task


class LoopWatch:
    """A thread that asks the loop for an answer, and looks at what it does if none comes.

    A loop that is merely short of processor time is not blamed on the handler that happens to
    run: the same handler must be seen at every look.
    """

    def __init__(self, worker_id: str, running: Callable[[], list[Execution]]) -> None:
        self._worker_id = worker_id
        self._running = running
        self._halt = threading.Event()
        self._answered = True
        self._said: dict[str, float] = {}  # type -> when
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._gone: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Watch the loop that runs here."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._gone = self._loop.create_future()
        threading.Thread(target=self._run, name="worker-loop-watch", daemon=True).start()

    async def stop(self, timeout: float = 2.0) -> None:
        """Stop, and wait until the thread is gone."""
        self._halt.set()
        if self._gone is not None:
            await asyncio.wait({self._gone}, timeout=timeout)

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
        self._call(self._leave)

    def _at_work(self) -> Execution | None:
        """The execution whose task the loop runs at this moment."""
        assert self._loop is not None
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
        extra = {**execution.log_fields(), "worker_id": self._worker_id, "blocked": blocked}
        log.warning(
            "task %s blocks the event loop, for %.1f s so far%s: no other `async def` task of this"
            " worker runs meanwhile; await what takes long, or make it a `def` task, which runs in"
            " a thread",
            name,
            blocked,
            self._place(execution),
            extra=extra,
        )

    def _place(self, execution: Execution) -> str:
        """Where the handler is, as file and line."""
        frame = sys._current_frames().get(self._thread_id)
        fn = execution.definition.fn if execution.definition else None
        code = getattr(fn, "__code__", None)
        found = _frame_of(frame, code)
        if found is None:
            return ""
        file, line = found.f_code.co_filename, found.f_lineno
        source = linecache.getline(file, line).strip()
        return f", at {os.path.basename(file)}:{line}" + (f" ({source})" if source else "")

    def _call(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def _answer(self) -> None:
        self._answered = True

    def _leave(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


def _frame_of(frame: FrameType | None, code: CodeType | None) -> FrameType | None:
    """The frame that runs the handler; of a decorated one, the innermost frame there is."""
    innermost = frame
    while frame is not None:
        if frame.f_code is code:
            return frame
        frame = frame.f_back
    return innermost
