"""Goes on in the background: a process of its own session, which tells its parent how it went."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobqueue.topology.supervisor import logfile

_STDERR = 2
Message = dict[str, Any]
Tell = Callable[[Message], None]


def in_background(body: Callable[[Tell], int], log: Path) -> Iterator[Message]:
    """Run ``body`` in the background; yields what it tells, until it says no more.

    The first message is ``{"pid": ...}``; one with ``last`` ends the conversation. Must be called
    before there are threads or loops: the process is forked, so that no secret has to be handed
    over.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    first = os.fork()
    if first == 0:
        _become_background(body, log, reading, writing)
    os.close(writing)
    os.waitpid(first, 0)
    with os.fdopen(reading) as messages:
        for line in messages:
            yield json.loads(line)


def _become_background(body: Callable[[Tell], int], log: Path, reading: int, writing: int) -> None:
    """Never returns."""
    status = 1
    try:
        os.close(reading)
        os.setsid()  # no terminal's signals from here on
        if os.fork():
            os._exit(0)  # the parent waits for this one only; the other belongs to init
        _close_inherited()
        logfile.begin(log)
        with logfile.append_to(log) as out, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        told = os.fdopen(writing, "w", buffering=1)

        def tell(message: Message) -> None:
            if told.closed:
                return
            with contextlib.suppress(OSError):  # nobody listens any more
                told.write(json.dumps(message) + "\n")
                if message.get("last"):
                    told.close()

        tell({"pid": os.getpid()})
        status = body(tell)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _close_inherited() -> None:
    """Close what the caller had open: a lock of its own must not be held until the end of ours.

    What this program opened itself is marked to be closed by an exec; what came through one is not.
    """
    for name in os.listdir("/dev/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # the folder's own is closed by now
            if number > _STDERR and os.get_inheritable(number):
                os.close(number)
