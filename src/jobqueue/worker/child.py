"""Run handlers in a separate process, and define the messages between it and the worker.

The messages are JSON with a length prefix. The executor starts the process as ``python -m
jobqueue.worker.child FD …``. The main thread runs handlers one after another. A second thread reads
messages, so that a cancel arrives while a handler runs. The process ends when its worker ends.
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
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import msgspec

from jobqueue import logs
from jobqueue.core.attempt import enter_attempt
from jobqueue.core.errors import Conflict, InvalidArgument, Unavailable
from jobqueue.core.job import Transition
from jobqueue.core.progress import Progress
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import TaskDefinition, define
from jobqueue.worker import completing
from jobqueue.worker.execution import describe, kinds, retry_after, too_large

MAX_FRAME = 256 * 1024 * 1024
PREFIX = struct.Struct(">I")
SCRIPT_MODULE = "__jobqueue_main__"
_PR_SET_PDEATHSIG = 1
_PROGRESS_PAUSE = 0.2  # limits the messages, because the worker's loop also serves other jobs


# -- messages ------------------------------------------------------------------------------------


class Run(msgspec.Struct, tag="run", tag_field="is", omit_defaults=True):
    """Tells the process to execute a job.

    The process imports the module of the handler. If a script defines the handler, ``script`` is
    the path of the script.
    """

    lease: int
    module: str
    qualname: str
    script: str | None
    path: list[str]
    job_id: str
    queue: str
    type: str
    attempt: int
    retry_count: int
    max_retries: int
    labels: dict[str, str]
    payload: bytes
    max_result_bytes: int
    timeout: float | None = None
    seq: int = 0
    worker_id: str = ""


class Cancel(msgspec.Struct, tag="cancel", tag_field="is"):
    """Tells the process to set the cancel flag of the job with this lease."""

    lease: int


class CompletionAnswer(msgspec.Struct, tag="completed", tag_field="is"):
    """Tells the process whether its handler's transaction may write the result, or why not."""

    lease: int
    error: str = ""


class ProcessReady(msgspec.Struct, tag="ready", tag_field="is"):
    """Tells the worker that the process is ready to execute jobs."""


class Advance(msgspec.Struct, tag="advance", tag_field="is"):
    """Tells the worker that the handler has reported progress."""

    lease: int
    value: float | None
    text: str


class Waiting(msgspec.Struct, tag="waiting", tag_field="is"):
    """Tells the worker that the handler starts or ends a wait for a job of this queue."""

    queue: str | None
    begins: bool


class CompletionRequest(msgspec.Struct, tag="completing", tag_field="is"):
    """Tells the worker that the handler's transaction is about to write the job's result."""

    lease: int
    needs_start: bool


class Done(msgspec.Struct, tag="done", tag_field="is"):
    """Tells the worker that the handler has returned this result."""

    result: bytes | None
    cancel_noticed: bool = False


class HandlerFailed(msgspec.Struct, tag="failed", tag_field="is"):
    """Tells the worker that the handler has raised an error or could not be called."""

    error: str
    kinds: list[str] = []  # class names of the error; empty if the result was too large
    retry_after: float | None = None


ToChild = Run | Cancel | CompletionAnswer
FromChild = ProcessReady | Advance | Waiting | CompletionRequest | Done | HandlerFailed

_encoder = msgspec.json.Encoder()
_to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)
from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild)


def frame(message: ToChild | FromChild) -> bytes:
    """Return an encoded message with its length prefix."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise ValueError(
            f"cannot send a message of {len(body)} bytes: more than the {MAX_FRAME} allowed"
        )
    return PREFIX.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    """Return the length of a message from its prefix."""
    length: int = PREFIX.unpack(prefix)[0]
    if length > MAX_FRAME:
        raise ValueError(f"received a message of {length} bytes: more than the {MAX_FRAME} allowed")
    return length


def _receive(sock: socket.socket) -> bytes | None:
    """Wait for one message and return its body; return None if the worker has ended."""
    prefix = _receive_exactly(sock, PREFIX.size)
    return None if prefix is None else _receive_exactly(sock, body_length(prefix))


def _receive_exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            chunk = sock.recv(min(count - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not chunk:
            return None
        data += chunk
    return bytes(data)


# -- the process ---------------------------------------------------------------------------------


class Throttle:
    """Passes the latest progress to ``pass_on``, with a minimum pause between two calls.

    Earlier progress within a pause is dropped. The last progress is never lost.
    """

    def __init__(self, pause: float, pass_on: Callable[[Progress], None]) -> None:
        self._pause = pause
        self._pass_on = pass_on
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._waiting: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Pass the progress on: now, or after the pause if no later progress replaces it."""
        with self._lock:
            later, self._waiting = self._waiting is not None, progress
            if later:
                return
            left = self._free_at - time.monotonic()
        if left <= 0:
            self._release()
            return
        timer = threading.Timer(left, self._release)
        timer.daemon = True
        timer.start()

    def _release(self) -> None:
        with self._lock:
            progress, self._waiting = self._waiting, None
            self._free_at = time.monotonic() + self._pause
        if progress is not None:
            self._pass_on(progress)


class _Attempt:
    """Implements ``RunningAttempt`` for the attempt that this process executes."""

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
            if not self.ended:  # otherwise the worker may already have sent another job
                self._child.send(Waiting(queue, begins=False))


class ChildCompletions(completing.Completing):
    """Accepts the results of handlers that run in this process."""

    def __init__(self, transactions: completing.Transactions, child: Child) -> None:
        super().__init__(transactions)
        self._child = child
        self._answers: queue.SimpleQueue[CompletionAnswer] = queue.SimpleQueue()

    def answered(self, message: CompletionAnswer) -> None:
        """Pass the worker's answer to the handler. The thread that reads messages calls this."""
        self._answers.put(message)

    def success(self, lease: int, result: Any) -> Transition:
        job, definition, began = self._child.running(lease)
        raw = completing.encoded(definition, result, job.max_result_bytes)
        report = Transition.succeeded(job.seq, lease, raw, time.monotonic() - began)
        report.worker_id = job.worker_id
        return report

    async def begins(self, lease: int, needs_start: bool) -> None:
        await asyncio.to_thread(self.begins_blocking, lease, needs_start)

    def begins_blocking(self, lease: int, needs_start: bool) -> None:
        self._child.send(CompletionRequest(lease, needs_start))
        answer = self._answers.get()
        if answer.error:
            raise Unavailable(answer.error)


class Child:
    """Executes the jobs that the worker sends to this process."""

    def __init__(
        self, sock: socket.socket, transactions: completing.Transactions | None = None
    ) -> None:
        self._sock = sock
        self._completions = ChildCompletions(transactions or completing.NoTransactions(), self)
        self._running: tuple[Run, TaskDefinition, float] | None = None
        self._sending = threading.Lock()
        self._jobs: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._contexts: dict[int, Context] = {}  # by lease, for the jobs that wait or run here
        self._tasks: dict[tuple[str, str], TaskDefinition] = {}

    def serve(self) -> None:
        """Execute jobs until the worker has ended."""
        threading.Thread(target=self._listen, name="worker-child", daemon=True).start()
        self.send(ProcessReady())
        while True:
            job = self._jobs.get()
            message = contextvars.copy_context().run(self._execute, job)
            self._contexts.pop(job.lease, None)
            _flush()
            self.send(message)

    def _listen(self) -> None:
        while (body := _receive(self._sock)) is not None:
            message = _to_child.decode(body)
            if isinstance(message, CompletionAnswer):
                self._completions.answered(message)
                continue
            if isinstance(message, Cancel):
                if context := self._contexts.get(message.lease):
                    context.request_cancel()
                continue
            self._contexts[message.lease] = self._context(message)
            self._jobs.put(message)
        os._exit(0)  # not sys.exit: the handler must not outlive its worker

    def _context(self, job: Run) -> Context:
        def advanced(progress: Progress) -> None:
            with contextlib.suppress(OSError):  # the worker has ended, and this process ends next
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
            lease=job.lease,
            completions=self._completions,
        )

    def running(self, lease: int) -> tuple[Run, TaskDefinition, float]:
        """Return the job with this lease, its task, and the time when its handler began."""
        running = self._running
        if running is None or running[0].lease != lease:
            raise Conflict("this attempt is over; roll the transaction back")
        return running

    def _execute(self, job: Run) -> Done | HandlerFailed:
        context = self._contexts[job.lease]
        attempt = _Attempt(job, self)
        enter_attempt(attempt)
        try:
            task = self._find(job)
            self._running = job, task, time.monotonic()
            arguments = task.decode(job.payload)
            if task.context_parameter is not None:
                arguments[task.context_parameter] = context
            value = task.fn(**arguments)
            if asyncio.iscoroutine(value):  # an ``async def`` handler gets a new event loop
                value = asyncio.run(value)
            result = task.encode_result(value)
        except BaseException as error:
            return HandlerFailed(describe(error), _kinds(error), retry_after(error))
        finally:
            attempt.ended = True
            self._running = None
        if result is not None and len(result) > job.max_result_bytes:
            return HandlerFailed(too_large(len(result), job.max_result_bytes))
        return Done(result, context.cancel_noticed)

    def _find(self, job: Run) -> TaskDefinition:
        key = (job.module, job.qualname)
        if key not in self._tasks:
            sys.path[:] = job.path
            found: Any = load(job.module, job.script)
            for name in job.qualname.split("."):
                found = getattr(found, name)
            # The name of a decorated handler refers to the object that the decorator returned.
            definition = getattr(found, "definition", None)
            self._tasks[key] = (
                definition if isinstance(definition, TaskDefinition) else define(found)
            )
        return self._tasks[key]

    def send(self, message: FromChild) -> None:
        """Send a message to the worker. Any thread may call this method."""
        data = frame(message)
        with self._sending:
            self._sock.sendall(data)


def load(module: str, script: str | None) -> ModuleType:
    """Import and return the handler's module.

    A script is imported under another name, so that its ``__main__`` part does not run.
    """
    if script is None:
        return importlib.import_module(module)
    if SCRIPT_MODULE in sys.modules:
        return sys.modules[SCRIPT_MODULE]
    spec = importlib.util.spec_from_file_location(SCRIPT_MODULE, script)
    if spec is None or spec.loader is None:
        raise InvalidArgument(
            "executor",
            f"cannot import {script!r} in a process, because Python cannot load it",
        )
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT_MODULE] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[SCRIPT_MODULE]
        raise
    return loaded


def _kinds(error: BaseException) -> list[str]:
    """Return the class names of an error, with ``__main__`` as the module of a script's classes."""
    return [name.replace(f"{SCRIPT_MODULE}.", "__main__.", 1) for name in kinds(error)]


def _flush() -> None:
    """Flush the output of the handler, because this process may be killed at any time."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def die_with(parent: int) -> None:
    """Make Linux kill this process when the worker ``parent`` ends, whatever a handler does.

    If the worker has ended already, exit.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main(arguments: list[str], transactions: completing.Transactions | None = None) -> None:
    """Execute jobs for the worker, which is at the other end of the socket in the arguments.

    ``transactions`` joins the transactions of handlers, for ``Context.complete``.
    """
    descriptor, parent, import_path = int(arguments[0]), int(arguments[1]), arguments[2]
    die_with(parent)
    # The worker put its import path into PYTHONPATH. A handler's programs get the original value.
    os.environ.pop("PYTHONPATH", None)
    if import_path:
        os.environ["PYTHONPATH"] = import_path
    if (setup := json.loads(arguments[3])) is not None:
        logs.apply(logs.Setup(**setup))
    os.set_inheritable(descriptor, False)  # a handler's own children must not hold it open
    sock = socket.socket(fileno=descriptor)
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        Child(sock, transactions).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
