"""Ends the servers of a test run that was itself killed.

    python -m tests.services.guardian PID FOLDER

A run ends its servers itself. This process is for the run that cannot any more: it waits for the
process to end, by whatever means, and then looks after the folder.
"""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# A Popen that is dropped while its process runs is a warning.
_started: list[subprocess.Popen[bytes]] = []


@atexit.register
def _let_go() -> None:
    """It stays to clean up after us."""
    for guardian in _started:
        guardian.returncode = guardian.poll() or 0


def watch(pid: int, folder: Path) -> None:
    """Start a guardian in the background. It outlives us if need be."""
    _started.append(
        subprocess.Popen(
            [sys.executable, "-m", "tests.services.guardian", str(pid), str(folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    )


def main() -> None:
    pid, folder = int(sys.argv[1]), Path(sys.argv[2])
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    else:
        select.select([watched], [], [])
    from tests.services.places import end_all

    end_all(folder)


if __name__ == "__main__":
    main()
