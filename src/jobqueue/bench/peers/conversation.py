"""Talk to an adapter: a process in a peer's environment that reads and writes lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobqueue.bench.peers.catalogue import ADAPTERS
from jobqueue.core.errors import Unavailable

_STARTING = 60.0
_ENDING = 15.0
_MARGIN = 20.0  # added to the longest time of a request


class AdapterFailed(Unavailable):
    """Raised when an adapter fails to answer a request."""


class AdapterConversation:
    """Sends requests to one adapter and reads the answers. The adapter starts the workers."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.version = str(self._answer("start", _STARTING)["ready"])

    @property
    def pid(self) -> int:
        """Return the process id of the adapter, whose child processes are the workers."""
        return self._process.pid

    def ask(self, do: str, *, within: float = 0.0, **told: Any) -> dict[str, Any]:
        """Request a measurement of ``within`` seconds. Return its answer or raise AdapterFailed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **told}) + "\n")
            self._process.stdin.flush()
        return self._answer(do, within + _MARGIN)

    def end(self) -> None:
        """Close the adapter's input, and wait until the adapter and its workers have ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)

    def _answer(self, what: str, patience: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        in_vain = threading.Event()

        def give_up() -> None:
            in_vain.set()
            _kill_session(self._process.pid)

        timer = threading.Timer(patience, give_up)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if in_vain.is_set():
            raise AdapterFailed(
                f"{what}: no answer within {patience:.0f} s; the adapter was killed (last line:"
                f" {self._last_line()})"
            )
        if not line:
            raise AdapterFailed(f"{what}: the adapter ended without an answer: {self._last_line()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            last = self._last_line()
            more = "" if answer["error"] in last else f" (last line: {last})"
            raise AdapterFailed(f"{what}: {answer['error']}{more}")
        return answer

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "the adapter wrote nothing"


@contextmanager
def adapter(
    python: Path, module: str, folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[AdapterConversation]:
    """Start an adapter in ``folder``, which is killed at the end of the block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    # The workers import the module, too. No process may write bytecode into the folder.
    kept["PYTHONPATH"] = f"{folder}{os.pathsep}{ADAPTERS}"
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(python), str(ADAPTERS / "serve.py"), module],
            cwd=folder,
            env={**kept, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        conversation = AdapterConversation(process, log)
        yield conversation
        conversation.end()
    finally:  # after a failure or Ctrl-C the adapter may still be running
        _kill_session(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _kill_session(leader: int) -> None:
    """Kill the adapter ``leader`` and all processes in its session."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(words[3]) == leader:
                    os.kill(int(folder.name), signal.SIGKILL)
