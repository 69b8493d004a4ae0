"""Runs a program under a pseudo-terminal, as a person does, and reads the screen."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import sys
import termios
from pathlib import Path

from tests import patience, warm
from tests.cli.processes import environment

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def screen(text: str) -> str:
    """The text without colours and cursor movements."""
    return _CONTROL.sub("", text).replace("\r", "")


def run(
    module: str,
    *args: str,
    cwd: Path,
    answers: dict[str, str] | None = None,
    columns: int = 120,
    timeout: float = 30.0,
    **extra: str,
) -> tuple[int, str]:
    """Returns the exit status and everything that was shown; ``answers`` are typed once each,
    when their prompt is seen. A typed ``^C`` is the key."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = warm.popen(
        [sys.executable, "-m", f"jobqueue.cli.{module}", *args],
        cwd=cwd,
        env=environment(TERM="xterm-256color", **extra),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        tty=True,
    )
    os.close(theirs)
    shown = b""
    waiting = dict(answers or {})
    limit = patience.Limit(timeout)
    try:
        while not limit.over:
            readable, _, _ = select.select([ours], [], [], 0.1)
            if not readable:
                if process.poll() is not None:
                    break
                continue
            try:
                data = os.read(ours, 65536)
            except OSError:  # Linux's way to say that the other end is closed
                break
            shown += data
            for prompt, answer in list(waiting.items()):
                if prompt in screen(shown.decode(errors="replace")):
                    del waiting[prompt]
                    os.write(ours, b"\x03" if answer == "^C" else answer.encode())
        else:
            raise AssertionError(f"not ended within {timeout} s: {shown!r}")
        return process.wait(patience.longest(5)), shown.decode(errors="replace")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
