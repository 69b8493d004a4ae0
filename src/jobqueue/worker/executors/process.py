"""Handlers in processes: the only ones that can be killed.

Processes are started one by one when needed, reused, and killed one by one. They are plain
``python -m jobqueue.worker.child``, not forks: a fork of a process with threads and open
connections is not sound.
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
from jobqueue.core.errors import InvalidArgument, Unavailable
from jobqueue.core.job import Transition
from jobqueue.worker import frames
from jobqueue.worker.execution import Endings, Execution, Host, Stop
from jobqueue.worker.executors.groups import describe_exit, kill_group
from jobqueue.worker.executors.spawn import Spawned
from jobqueue.worker.frames import (
    Advance,
    Cancel,
    Failed,
    FromChild,
    Ready,
    Run,
    Waiting,
)
from jobqueue.worker.task import TaskDefinition

_EXIT_SECONDS = 2.0


class Child:
    """One process, as the worker sees it."""

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
    async def start(cls, timeout: float) -> Child:
        """Start a process and wait until it is up."""
        ours, theirs = socket.socketpair()
        setup = logs.applied()
        try:
            with theirs:
                process = Spawned.start(
                    [
                        sys.executable,
                        "-m",
                        "jobqueue.worker.child",
                        str(theirs.fileno()),
                        str(os.getpid()),
                        os.environ.get("PYTHONPATH", ""),
                        json.dumps(setup and asdict(setup)),  # its log goes where ours does
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
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
            raise Unavailable(f"a process did not come up within {timeout:g} s") from None
        except BaseException:
            await child.kill()
            raise
        if not isinstance(message, Ready):
            raise Unavailable(f"a process did not come up: {await child.kill()}")
        return child

    async def send(self, message: Run | Cancel) -> None:
        """Send it a message; if it is gone, the next ``receive`` will tell."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(frames.frame(message))
            await self._writer.drain()

    def ask_to_stop(self, lease: int) -> None:
        """Raise the flag of a job."""
        self._writer.write(frames.frame(Cancel(lease)))

    async def receive(self) -> FromChild | None:
        """Its next message; None when it is gone."""
        try:
            prefix = await self._reader.readexactly(frames.PREFIX.size)
            body = await self._reader.readexactly(frames.body_length(prefix))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return frames.read_from_child(body)

    def kill_now(self) -> None:
        """Kill it with all that its handler started."""
        kill_group(self._process.pid)

    async def kill(self) -> str:
        """Kill it, and wait until it is gone; says how it ended."""
        # Give a process that is already ending the time to say so itself.
        if not self._reader.at_eof():
            self.kill_now()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                status = await self._process.wait()
        except TimeoutError:
            self.kill_now()
            status = await self._process.wait()
        self.kill_now()  # its handler's children
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return describe_exit(status)


class ProcessExecutor:
    """Processes started on demand; never more than there are slots."""

    def __init__(
        self, host: Host, endings: Endings, start_timeout: float, cancel_grace: float
    ) -> None:
        self._host = host
        self._endings = endings
        self._start_timeout = start_timeout
        self._grace = cancel_grace
        self._loop = asyncio.get_running_loop()
        self._idle: list[Child] = []
        self._busy: dict[int, Child] = {}  # lease -> process
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(self, execution: Execution) -> None:
        """Run it in an idle process, or in a new one."""
        task = self._loop.create_task(self._run(execution))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def withdraw(self, execution: Execution) -> bool:
        """It has not begun before a process has it."""
        return not execution.begun

    def interrupt(self, execution: Execution) -> None:
        """Kill the process; a cancelled handler is asked first and gets some time."""
        child = self._busy.get(execution.assignment.lease)
        if child is None:
            return
        if execution.stop is not Stop.CANCELLED:
            child.kill_now()
        elif execution.handle is None:
            child.ask_to_stop(execution.assignment.lease)
            execution.handle = self._loop.call_later(self._grace, child.kill_now)

    async def close(self) -> None:
        """Kill every process."""
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
        child: Child | None = None
        try:
            child = self._idle.pop() if self._idle else await Child.start(self._start_timeout)
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

    async def _keep(self, child: Child) -> None:
        if self._closed:
            await child.kill()
        else:
            self._idle.append(child)

    async def _execute(self, child: Child, execution: Execution) -> tuple[Transition, bool]:
        assert execution.definition is not None
        context = execution.make_context(self._host.advanced)
        await child.send(self._request(execution, execution.definition))
        while isinstance(message := await child.receive(), Advance | Ready | Waiting):
            if isinstance(message, Advance):
                if message.lease == execution.assignment.lease:  # not a late one of another job
                    context.progress(message.value, message.text)
            elif isinstance(message, Waiting):
                wait = execution.waiting.begin if message.begins else execution.waiting.end
                wait(execution.assignment.lease, message.queue)
        if message is None:
            text = f"the process ended while it ran the job: {await child.kill()}"
            return self._endings.failed(execution, text), False
        if isinstance(message, Failed):
            if not message.kinds:
                return self._endings.failed(execution, message.error, retryable=False), True
            report = self._endings.reported(
                execution, message.error, message.kinds, message.retry_after
            )
            return report, True
        if message.cancel_noticed:
            context.request_cancel(noticed=True)
        return self._endings.succeeded(execution, message.result), True

    def _request(self, execution: Execution, definition: TaskDefinition) -> Run:
        job = execution.assignment
        module, script = whereabouts(definition.fn)
        return Run(
            lease=job.lease,
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
    """Where another process finds a function: its module, or the path of a script."""
    if fn.__module__ != "__main__":
        return fn.__module__, None
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        return spec.name, None
    script = getattr(main, "__file__", None) or inspect.getfile(fn)
    if not os.path.isfile(script):
        raise InvalidArgument(
            "executor", "a process cannot import a handler from an interactive session"
        )
    return "__main__", os.path.abspath(script)
