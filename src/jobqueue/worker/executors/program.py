"""Any program as the handler: payload on stdin, result on stdout, exit status as outcome."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from typing import cast

from jobqueue.core.job import Assignment, Transition
from jobqueue.worker.execution import MAX_ERROR_BYTES, Endings, Execution, Host, Stop
from jobqueue.worker.executors.groups import describe_exit, kill_group

_STDERR_TAIL = MAX_ERROR_BYTES - 100
_DRAIN_SECONDS = 1.0  # for output that the program's own children hold open after its end


class ProgramExecutor:
    """Starts the program once for each job, in a process group of its own."""

    def __init__(
        self, host: Host, endings: Endings, command: Sequence[str], cancel_grace: float
    ) -> None:
        self._host = host
        self._endings = endings
        self._command = tuple(command)
        self._grace = cancel_grace
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pids: dict[int, int] = {}  # lease -> process

    def submit(self, execution: Execution) -> None:
        """Start the program."""
        task = self._loop.create_task(self._run(execution))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def withdraw(self, execution: Execution) -> bool:
        """It has not begun before its process is started."""
        return not execution.begun

    def interrupt(self, execution: Execution) -> None:
        """A cancelled program gets SIGTERM and some time, any other is killed."""
        pid = self._pids.get(execution.assignment.lease)
        if pid is None:  # between its begin and its process: _run looks at ``stop`` afterwards
            return
        if execution.stop is not Stop.CANCELLED:
            kill_group(pid)
        elif execution.handle is None:
            kill_group(pid, signal.SIGTERM)
            execution.handle = self._loop.call_later(self._grace, kill_group, pid)

    async def close(self) -> None:
        """Kill what runs."""
        for pid in self._pids.values():
            kill_group(pid)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_DRAIN_SECONDS + 1)

    async def _run(self, execution: Execution) -> None:
        if not self._host.begin(execution):
            return
        try:
            report = await self._execute(execution)
        except OSError as error:
            report = self._endings.failed(execution, f"cannot run {self._command[0]!r}: {error}")
        except Exception as error:
            report = self._endings.raised(execution, error)
        self._host.ended(execution, report)

    async def _execute(self, execution: Execution) -> Transition:
        job = execution.assignment
        talk = _Conversation(self._loop, self._endings.max_result_bytes)
        transport, _ = await self._loop.subprocess_exec(
            lambda: talk,
            *self._command,
            start_new_session=True,
            env=environment(job),
        )
        self._pids[job.lease] = transport.get_pid()
        if execution.stop is not None:
            self.interrupt(execution)
        try:
            await talk.hold(transport, job.payload)
        finally:
            del self._pids[job.lease]
            if execution.handle is not None:
                execution.handle.cancel()
        if talk.overflowed:
            text = f"result: the program wrote more than the {talk.limit} bytes allowed"
            return self._endings.failed(execution, text, retryable=False)
        status = transport.get_returncode()
        if status:
            text = talk.errors.decode(errors="replace").strip()
            return self._endings.failed(execution, f"{describe_exit(status)}\n{text}".strip())
        return self._endings.succeeded(execution, bytes(talk.result) or None)


_SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|_URL$")
"""In the name of a variable of ours that a program has no business with."""


def environment(job: Assignment) -> dict[str, str]:
    """The worker's own environment without its secrets, and what the job is."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith("JQ_") and _SECRET.search(name))
    }
    return inherited | {
        "JQ_JOB_ID": job.id,
        "JQ_QUEUE": job.queue,
        "JQ_TYPE": job.type,
        "JQ_ATTEMPT": str(job.attempt),
    }


class _Conversation(asyncio.SubprocessProtocol):
    """Feeds a program and collects what it writes, within bounds.

    Not asyncio's streams: their ``wait`` may not return while a child of the program holds its
    output open.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.limit = limit
        self.result = bytearray()
        self.errors = b""
        self.overflowed = False
        self._pid = 0
        self._open_outputs = {1, 2}
        self._exited: asyncio.Future[None] = loop.create_future()
        self._silent: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()

    async def hold(self, transport: asyncio.SubprocessTransport, payload: bytes) -> None:
        """Talk until the program has ended."""
        # uvloop's transports are not subclasses of asyncio's.
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        try:
            if not stdin.is_closing():  # a program may end before it is spoken to
                stdin.write(payload)
                stdin.close()  # after it is written; a program need not read it
            await self._exited
            # The program's end is the end: what it left running must not hold its output open.
            await asyncio.wait({self._silent}, timeout=_DRAIN_SECONDS)
            if not self._silent.done():
                kill_group(self._pid)
                await asyncio.wait({self._silent}, timeout=_DRAIN_SECONDS)
        finally:
            transport.close()
            await asyncio.wait({self._closed}, timeout=_DRAIN_SECONDS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pid = cast("asyncio.SubprocessTransport", transport).get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self.errors = (self.errors + data)[-_STDERR_TAIL:]
        elif not self.overflowed:
            self.result += data
            if len(self.result) > self.limit:
                self.overflowed = True
                kill_group(self._pid)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_outputs.discard(fd)
        if not self._open_outputs and not self._silent.done():
            self._silent.set_result(None)

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
