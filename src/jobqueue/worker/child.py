"""The process side of the process executor: ``python -m jobqueue.worker.child FD``.

The main thread runs handlers one after another. A second thread listens, so that a cancel gets
through while a handler runs, and so that the process ends when its worker does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import importlib
import importlib.util
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from jobqueue import logs
from jobqueue.core.attempt import enter_attempt
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.progress import Progress
from jobqueue.worker import frames
from jobqueue.worker.context import Context
from jobqueue.worker.execution import describe, kinds, retry_after, too_large
from jobqueue.worker.frames import Advance, Cancel, Done, Failed, FromChild, Ready, Run, Waiting
from jobqueue.worker.progress import Throttle
from jobqueue.worker.task import TaskDefinition, define

SCRIPT_MODULE = "__jobqueue_main__"
_PR_SET_PDEATHSIG = 1
_PROGRESS_PAUSE = 0.2  # the loop of the worker serves other jobs as well


class _Attempt:
    """The job that runs, as the code in its handler sees it."""

    def __init__(self, job: Run, child: Child) -> None:
        self.ended = False
        self._job = job
        self._child = child

    def log_fields(self) -> Mapping[str, Any]:
        job = self._job
        return {
            "job_id": job.job_id,
            "type": job.type,
            "queue": job.queue,
            "attempt": job.attempt,
        }

    @contextlib.contextmanager
    def waiting_for(self, queue: str | None) -> Iterator[None]:
        self._child.send(Waiting(queue, begins=True))
        try:
            yield
        finally:
            if not self.ended:  # then the worker knows, and may have sent another job
                self._child.send(Waiting(queue, begins=False))


class Child:
    """Executes what its worker sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._jobs: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._contexts: dict[int, Context] = {}  # lease -> of the job that waits or runs
        self._tasks: dict[tuple[str, str], TaskDefinition] = {}

    def serve(self) -> None:
        """Run until the worker is gone."""
        threading.Thread(target=self._listen, name="worker-child", daemon=True).start()
        self.send(Ready())
        while True:
            job = self._jobs.get()
            message = contextvars.copy_context().run(self._execute, job)
            self._contexts.pop(job.lease, None)
            _flush()
            self.send(message)

    def _listen(self) -> None:
        while (body := frames.receive(self._sock)) is not None:
            message = frames.read_to_child(body)
            if isinstance(message, Cancel):
                if context := self._contexts.get(message.lease):
                    context.request_cancel()
                continue
            self._contexts[message.lease] = self._context(message)
            self._jobs.put(message)
        os._exit(0)  # not sys.exit: the handler must not outlive its worker

    def _context(self, job: Run) -> Context:
        def advanced(progress: Progress) -> None:
            with contextlib.suppress(OSError):  # the worker is gone, and this process goes, too
                self.send(Advance(job.lease, progress.value, progress.text))

        return Context(
            job_id=job.job_id,
            queue=job.queue,
            type=job.type,
            attempt=job.attempt,
            retry_count=job.retry_count,
            max_retries=job.max_retries,
            labels=job.labels,
            payload=job.payload,
            deadline=None if job.timeout is None else time.monotonic() + job.timeout,
            on_progress=Throttle(_PROGRESS_PAUSE, advanced),
        )

    def _execute(self, job: Run) -> Done | Failed:
        context = self._contexts[job.lease]
        attempt = _Attempt(job, self)
        enter_attempt(attempt)
        try:
            task = self._find(job)
            arguments = task.decode(job.payload)
            if task.context_parameter is not None:
                arguments[task.context_parameter] = context
            value = task.fn(**arguments)
            if asyncio.iscoroutine(value):  # an ``async def`` handler gets a loop of its own
                value = asyncio.run(value)
            result = task.encode_result(value)
        except BaseException as error:
            return Failed(describe(error), _kinds(error), retry_after(error))
        finally:
            attempt.ended = True
        if result is not None and len(result) > job.max_result_bytes:
            return Failed(too_large(len(result), job.max_result_bytes))
        return Done(result, context.cancel_noticed)

    def _find(self, job: Run) -> TaskDefinition:
        key = (job.module, job.qualname)
        if key not in self._tasks:
            sys.path[:] = job.path
            found: Any = load(job.module, job.script)
            for name in job.qualname.split("."):
                found = getattr(found, name)
            # A decorated handler is found as the object that the decorator left in its place.
            definition = getattr(found, "definition", None)
            self._tasks[key] = (
                definition if isinstance(definition, TaskDefinition) else define(found)
            )
        return self._tasks[key]

    def send(self, message: FromChild) -> None:
        """Tell the worker. Usable from any thread."""
        data = frames.frame(message)
        with self._sending:
            self._sock.sendall(data)


def load(module: str, script: str | None) -> ModuleType:
    """Import the handler's module; a script is imported by its path, under another name."""
    if script is None:
        return importlib.import_module(module)
    if SCRIPT_MODULE in sys.modules:
        return sys.modules[SCRIPT_MODULE]
    spec = importlib.util.spec_from_file_location(SCRIPT_MODULE, script)
    if spec is None or spec.loader is None:
        raise InvalidArgument("executor", f"cannot import {script!r} in a process")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT_MODULE] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[SCRIPT_MODULE]
        raise
    return loaded


def _kinds(error: BaseException) -> list[str]:
    """The kinds of an error; a class of the script by the name that it has in the worker."""
    return [name.replace(f"{SCRIPT_MODULE}.", "__main__.", 1) for name in kinds(error)]


def _flush() -> None:
    """What a handler printed must be out before its end is told: this process may be killed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def die_with(parent: int) -> None:
    """End with the worker even while a handler holds the interpreter (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Serve the worker at the other end of the descriptor."""
    descriptor, parent, import_path = int(arguments[0]), int(arguments[1]), arguments[2]
    die_with(parent)
    # The worker's import path came in this variable; programs a handler starts get their own.
    os.environ.pop("PYTHONPATH", None)
    if import_path:
        os.environ["PYTHONPATH"] = import_path
    if (setup := json.loads(arguments[3])) is not None:
        logs.apply(logs.Setup(**setup))
    os.set_inheritable(descriptor, False)  # a handler's own children must not hold it open
    sock = socket.socket(fileno=descriptor)
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        Child(sock).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
