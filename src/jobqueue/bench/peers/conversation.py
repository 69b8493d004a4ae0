"""Speaks with an adapter: a process of a peer's environment, one JSON object on a line."""

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
_MARGIN = 30.0  # beyond what a request may take


class AdapterFailed(Unavailable):
    """An adapter could not do what it was asked."""


class Conversation:
    """With one adapter, which owns its peer's workers."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.version = str(self._answer("start", _STARTING)["ready"])

    def ask(self, do: str, *, within: float = 0.0, **told: Any) -> dict[str, Any]:
        """Ask for one measurement and wait for its answer. Raises AdapterFailed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **told}) + "\n")
            self._process.stdin.flush()
        return self._answer(do, within + _MARGIN)

    def end(self) -> None:
        """Let it end its workers and itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _kill_session(self._process.pid)
            self._process.wait()

    def _answer(self, what: str, patience: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(patience, _kill_session, (self._process.pid,))
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise AdapterFailed(f"{what}: it ended without an answer: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AdapterFailed(f"{what}: {answer['error']} (last line: {self._last_words()})")
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it wrote nothing"


@contextmanager
def adapter(
    python: Path, module: str, folder: Path, environment: Mapping[str, str], log: Path
) -> Iterator[Conversation]:
    """An adapter of that folder that is ready, until the end of the block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    # For its workers, which import the module, too. The folder is not theirs to write to.
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
    conversation = None
    try:
        conversation = Conversation(process, log)
        yield conversation
    finally:
        if conversation is not None:
            conversation.end()
        else:
            _kill_session(process.pid)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _kill_session(leader: int) -> None:
    """All processes that an adapter started: they are in its session, in groups of their own."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(words[3]) == leader:
                    os.kill(int(folder.name), signal.SIGKILL)
