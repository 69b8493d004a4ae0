"""Run an external program for each job.

The program reads the payload on stdin and writes the result to stdout. Exit status 0 means success.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import IO

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MAX_ERROR_BYTES, Assignment, Transition
from jobqueue.core.progress import Progress
from jobqueue.redaction import holds_secret
from jobqueue.worker.execution import Endings, Execution, Executor, Host, Stop
from jobqueue.worker.executors.spawn import Spawned, describe_exit, kill_group

log = logging.getLogger("jobqueue.worker")

_STDERR_TAIL = MAX_ERROR_BYTES - 100
_CHUNK = 64 * 1024
_PROGRESS_PAUSE = 0.2
_IGNORED = "ignored a line of progress of job %s: %s; further such lines are ignored silently"
_DRAIN_SECONDS = 1.0  # to read the output after the program's end, if its children keep it open


class ProgramExecutor(Executor):
    """Runs the configured program once for each job, in a new process group."""

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
        task = self._loop.create_task(self._run(execution))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def interrupt(self, execution: Execution) -> None:
        """Kill the program; at a cancel, first send SIGTERM and wait for the grace time."""
        pid = self._pids.get(execution.assignment.lease)
        if pid is None:  # its process is being started: _execute reads ``stop`` afterwards
            return
        if execution.stop is not Stop.CANCELLED:
            kill_group(pid)
        elif execution.handle is None:
            kill_group(pid, signal.SIGTERM)
            execution.handle = self._loop.call_later(self._grace, kill_group, pid)

    async def close(self) -> None:
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
            report = self._endings.failed(
                execution, f"cannot start the program {self._command[0]!r}: {error}"
            )
        except Exception as error:
            report = self._endings.raised(execution, error)
        self._host.ended(execution, report)

    async def _execute(self, execution: Execution) -> Transition:
        job = execution.assignment
        progress = ProgressPipe(job, self._host.advanced)
        try:
            return await self._converse(execution, progress)
        finally:
            progress.close()

    async def _converse(self, execution: Execution, progress: ProgressPipe) -> Transition:
        job = execution.assignment
        try:
            process = Spawned(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(progress.writing,),
                env=environment(job) | {"JQ_PROGRESS": f"/dev/fd/{progress.writing}"},
            )
        finally:
            progress.listen()
        self._pids[job.lease] = process.pid
        if execution.stop is not None:
            self.interrupt(execution)
        talk = Conversation(process, self._endings.max_result_bytes)
        try:
            status = await talk.hold(job.payload)
        finally:
            del self._pids[job.lease]
            if execution.handle is not None:
                execution.handle.cancel()
        if talk.overflowed:
            text = f"result: the program wrote more than the {talk.limit} bytes allowed"
            return self._endings.failed(execution, text, retryable=False)
        if status:
            text = talk.errors.decode(errors="replace").strip()
            return self._endings.failed(execution, f"{describe_exit(status)}\n{text}".strip())
        return self._endings.succeeded(execution, bytes(talk.result) or None)


_SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|_URL$")
"""Matches the names of ``JQ_`` variables that are hidden from programs."""


def environment(job: Assignment) -> dict[str, str]:
    """Return the worker's environment without its secrets, plus the variables of the job."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        # The URL of a store may contain a password, in a variable of any name.
        if not (name.startswith("JQ_") and (_SECRET.search(name) or holds_secret(value)))
    }
    return inherited | {
        "JQ_JOB_ID": job.id,
        "JQ_QUEUE": job.queue,
        "JQ_TYPE": job.type,
        "JQ_ATTEMPT": str(job.attempt),
    }


class ProgressPipe:
    """Reads the progress that a program writes to a pipe, as lines like ``0.4 12 of 30 files``."""

    def __init__(self, job: Assignment, advanced: Callable[[int, Progress], None]) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._loop = asyncio.get_running_loop()
        self._job = job
        self._advanced = advanced
        self._rest = b""
        self._pause: asyncio.TimerHandle | None = None
        self._last: Progress | None = None
        self._complained = False

    def listen(self) -> None:
        """Start reading from the pipe, and close the writing end in this process."""
        os.close(self.writing)
        self._loop.add_reader(self._reading, self._read)

    def close(self) -> None:
        """Stop reading, even if processes that the program started keep the pipe open."""
        self._loop.remove_reader(self._reading)
        if self._pause is not None:
            self._pause.cancel()
        os.close(self._reading)

    def _read(self) -> None:
        """Handle the latest line, then pause, because a program may write many lines."""
        try:
            chunk = os.read(self._reading, _CHUNK)
        except BlockingIOError:
            return
        self._loop.remove_reader(self._reading)
        if not chunk:
            return  # every writing end is closed
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-_CHUNK:]
        if lines:
            self._heard(lines[-1].decode(errors="replace"))
        self._pause = self._loop.call_later(
            _PROGRESS_PAUSE, self._loop.add_reader, self._reading, self._read
        )

    def _heard(self, line: str) -> None:
        try:
            progress = read_progress(line)
        except InvalidArgument as error:
            if not self._complained:
                self._complained = True
                fields = {"job_id": self._job.id, "queue": self._job.queue}
                log.warning(_IGNORED, self._job.id, error, extra=fields)
            return
        if progress != self._last:
            self._last = progress
            self._advanced(self._job.lease, progress)


def read_progress(line: str) -> Progress:
    """Return the progress in a line: a value from 0 to 1, or ``-``, then an optional text."""
    first, _, text = line.strip().partition(" ")
    try:
        value = None if first == "-" else float(first)
    except ValueError:
        raise InvalidArgument(
            "progress",
            f"expected a number from 0 to 1, or -, then an optional text; got {line[:50]!r}",
        ) from None
    return Progress.of(value, text.strip())


class Conversation:
    """Writes the payload to a running program, and collects its result and error output.

    A program that writes more than ``limit`` bytes of result is killed.
    """

    def __init__(self, process: Spawned, limit: int) -> None:
        self.limit = limit
        self.result = bytearray()
        self.errors = b""
        self.overflowed = False
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._transports: list[asyncio.BaseTransport] = []

    async def hold(self, payload: bytes) -> int:
        """Exchange data with the program until it has ended; return its exit status."""
        talk = {
            self._loop.create_task(self._feed(payload)),
            self._loop.create_task(self._read_result()),
            self._loop.create_task(self._read_errors()),
        }
        try:
            status = await self._process.wait()
            # Kill processes that the program left running if they keep its output open.
            _, open_still = await asyncio.wait(talk, timeout=_DRAIN_SECONDS)
            if open_still:
                kill_group(self._process.pid)
                await asyncio.wait(talk, timeout=_DRAIN_SECONDS)
        finally:
            for task in talk:
                task.cancel()
            await asyncio.wait(talk)
            for transport in self._transports:
                transport.close()
        return status

    async def _feed(self, payload: bytes) -> None:
        transport, protocol = await self._loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, self._process.popen.stdin
        )
        self._transports.append(transport)
        writer = asyncio.StreamWriter(transport, protocol, None, self._loop)
        # The program may have ended, or may not read its input.
        with contextlib.suppress(OSError, RuntimeError):
            writer.write(payload)
            await writer.drain()
        transport.close()

    async def _reader(self, pipe: IO[bytes] | None) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    async def _read_result(self) -> None:
        reader = await self._reader(self._process.popen.stdout)
        while chunk := await reader.read(_CHUNK):
            if self.overflowed:
                continue
            self.result += chunk
            if len(self.result) > self.limit:
                self.overflowed = True
                kill_group(self._process.pid)

    async def _read_errors(self) -> None:
        reader = await self._reader(self._process.popen.stderr)
        while chunk := await reader.read(_CHUNK):
            self.errors = (self.errors + chunk)[-_STDERR_TAIL:]
