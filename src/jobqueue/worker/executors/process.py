"""Run handlers in separate processes, which can be killed.

Processes are started when they are needed, and reused. Each process is a new ``python -m
jobqueue.worker.child`` and not a fork, because the fork of a process with threads and open
connections is not safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from jobqueue import logs
from jobqueue.core.errors import InvalidArgument, JobQueueError, Unavailable
from jobqueue.core.job import Transition
from jobqueue.tasks.task import TaskDefinition
from jobqueue.worker.child import (
    PREFIX,
    Advance,
    Cancel,
    CompletionAnswer,
    CompletionRequest,
    FromChild,
    HandlerFailed,
    ProcessReady,
    Run,
    Waiting,
    body_length,
    frame,
    from_child,
)
from jobqueue.worker.execution import Endings, Execution, Executor, Host, Stop
from jobqueue.worker.executors.spawn import Spawned, describe_exit, kill_group

_EXIT_SECONDS = 2.0


def _import_path() -> str:
    """Return ``sys.path`` as PYTHONPATH, with ``.`` in place of an empty entry."""
    return os.pathsep.join(entry or os.curdir for entry in sys.path)


class ChildProcess:
    """Controls one process that runs handlers, from the worker's side."""

    def __init__(
        self,
        process: Spawned,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, timeout: float, module: str) -> ChildProcess:
        """Start a process with this module, and wait ``timeout`` seconds at most for it.

        Unavailable means that the process was not ready in time, or has ended.
        """
        ours, theirs = socket.socketpair()
        setup = logs.applied()
        try:
            with theirs:
                process = Spawned(
                    [
                        sys.executable,
                        "-P",  # do not import from the current folder, unless sys.path has it
                        "-m",
                        module,
                        str(theirs.fileno()),
                        str(os.getpid()),
                        os.environ.get("PYTHONPATH", ""),
                        json.dumps(
                            setup and asdict(setup)
                        ),  # the same log settings as this process
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, "PYTHONPATH": _import_path()},
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        child = cls(process, reader, writer)
        try:
            async with asyncio.timeout(timeout):
                message = await child.receive()
        except TimeoutError:
            await child.kill()
            raise Unavailable(
                f"a process for the job was not ready within {timeout:g} s, and was killed"
            ) from None
        except BaseException:
            await child.kill()
            raise
        if not isinstance(message, ProcessReady):
            raise Unavailable(
                f"a process for the job ended before it was ready: {await child.kill()}"
            )
        return child

    async def send(self, message: Run | Cancel | CompletionAnswer) -> None:
        """Send a message. If the process has ended, the next ``receive`` returns None."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(frame(message))
            await self._writer.drain()

    def ask_to_stop(self, lease: int) -> None:
        """Tell the process to set the flag ``ctx.cancelled`` of the job with this lease."""
        self._writer.write(frame(Cancel(lease)))

    async def receive(self) -> FromChild | None:
        """Return the next message from the process; None if the process has ended."""
        try:
            prefix = await self._reader.readexactly(PREFIX.size)
            body = await self._reader.readexactly(body_length(prefix))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return from_child.decode(body)

    def kill_now(self) -> None:
        """Kill the process and all processes that its handler started."""
        kill_group(self._process.pid)

    async def kill(self) -> str:
        """Kill the process and wait for its end; return its exit status in words."""
        # A process that has closed its connection is given time to end by itself.
        if not self._reader.at_eof():
            self.kill_now()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                status = await self._process.wait()
        except TimeoutError:
            self.kill_now()
            status = await self._process.wait()
        self.kill_now()  # processes that its handler started
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return describe_exit(status)


class ProcessExecutor(Executor):
    """Runs handlers in processes, which are started on demand: at most one for each slot."""

    may_overlook_cancel = True

    def __init__(
        self,
        host: Host,
        endings: Endings,
        start_timeout: float,
        cancel_grace: float,
        worker_id: str,
        child_module: str,
    ) -> None:
        self._host = host
        self._worker_id = worker_id
        self._child_module = child_module
        self._endings = endings
        self._start_timeout = start_timeout
        self._grace = cancel_grace
        self._loop = asyncio.get_running_loop()
        self._idle: list[ChildProcess] = []
        self._busy: dict[int, ChildProcess] = {}  # lease -> process
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(self, execution: Execution) -> None:
        task = self._loop.create_task(self._run(execution))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def interrupt(self, execution: Execution) -> None:
        """Kill the process; at a cancel, first set its flag and wait for the grace time."""
        child = self._busy.get(execution.assignment.lease)
        if child is None:
            return
        if execution.stop is not Stop.CANCELLED:
            child.kill_now()
        elif execution.handle is None:
            child.ask_to_stop(execution.assignment.lease)
            execution.handle = self._loop.call_later(self._grace, child.kill_now)

    async def close(self) -> None:
        self._closed = True
        for child in self._busy.values():
            child.kill_now()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_EXIT_SECONDS + 1)
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.kill() for child in idle))

    async def _run(self, execution: Execution) -> None:
        try:
            child = (
                self._idle.pop()
                if self._idle
                else await ChildProcess.start(self._start_timeout, self._child_module)
            )
        except (OSError, Unavailable) as error:
            if self._host.begin(execution):
                self._host.ended(execution, self._endings.failed(execution, str(error)))
            return
        if not self._host.begin(execution):
            await self._keep(child)
            return
        lease = execution.assignment.lease
        self._busy[lease] = child
        try:
            report, alive = await self._execute(child, execution)
        except BaseException as error:
            report, alive = self._endings.raised(execution, error), False
        finally:
            del self._busy[lease]
            if execution.handle is not None:
                execution.handle.cancel()
        if alive:
            await self._keep(child)
        else:
            await child.kill()
        self._host.ended(execution, report)

    async def _keep(self, child: ChildProcess) -> None:
        if self._closed:
            await child.kill()
        else:
            self._idle.append(child)

    async def _execute(self, child: ChildProcess, execution: Execution) -> tuple[Transition, bool]:
        assert execution.definition is not None
        context = execution.make_context(self._host.advanced)
        await child.send(self._request(execution, execution.definition))
        while isinstance(
            message := await child.receive(), Advance | ProcessReady | Waiting | CompletionRequest
        ):
            if isinstance(message, CompletionRequest):
                await child.send(await self._completing(execution, message))
            elif isinstance(message, Advance):
                if (
                    message.lease == execution.assignment.lease
                ):  # ignore late progress of an earlier job
                    context.progress(message.value, message.text)
            elif isinstance(message, Waiting):
                wait = execution.waiting.begin if message.begins else execution.waiting.end
                wait(execution.assignment.lease, message.queue)
        if message is None:
            text = f"the process that ran the job has ended: {await child.kill()}"
            return self._endings.failed(execution, text), False
        if isinstance(message, HandlerFailed):
            if not message.kinds:
                return self._endings.failed(execution, message.error, retryable=False), True
            report = self._endings.reported(
                execution, message.error, message.kinds, message.retry_after
            )
            return report, True
        if message.cancel_noticed:
            context.request_cancel(noticed=True)
        return self._endings.succeeded(execution, message.result), True

    async def _completing(
        self, execution: Execution, message: CompletionRequest
    ) -> CompletionAnswer:
        lease = execution.assignment.lease
        if message.lease != lease:
            return CompletionAnswer(message.lease, "the attempt is over")
        try:
            await self._host.completing(execution, message.needs_start)
        except JobQueueError as error:
            return CompletionAnswer(lease, error.message)
        return CompletionAnswer(lease)

    def _request(self, execution: Execution, definition: TaskDefinition) -> Run:
        job = execution.assignment
        module, script = whereabouts(definition.fn)
        return Run(
            lease=job.lease,
            seq=job.seq,
            worker_id=self._worker_id,
            module=module,
            qualname=definition.fn.__qualname__,
            script=script,
            path=sys.path,
            job_id=job.id,
            queue=job.queue,
            type=job.type,
            attempt=job.attempt,
            retry_count=job.retry_count,
            max_retries=job.max_retries,
            labels=dict(job.labels),
            payload=job.payload,
            max_result_bytes=self._endings.max_result_bytes,
            timeout=execution.timeout,
        )


def whereabouts(fn: Any) -> tuple[str, str | None]:
    """Return the module of a function, and the script's path if a script defines the function."""
    if fn.__module__ != "__main__":
        return fn.__module__, None
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        return spec.name, None
    script = getattr(main, "__file__", None) or inspect.getfile(fn)
    if not os.path.isfile(script):
        raise InvalidArgument(
            "executor",
            "a process cannot import a handler that is defined in an interactive session; define it"
            " in a file",
        )
    return "__main__", os.path.abspath(script)
