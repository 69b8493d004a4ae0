"""Ctrl-C before a program has been loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.processes import environment

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "scripts"
]
# Stands for a library that is being imported. An exception cannot leave a finalizer.
INTERRUPTED = """
import os, signal, sys

class Loaded:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

Loaded()
print("went on")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_while_a_program_is_loaded_ends_it_quietly(tmp_path: Path, program: str):
    (tmp_path / "typer.py").write_text(INTERRUPTED)
    module, function = PROGRAMS[program].split(":")
    ended = subprocess.run(
        [sys.executable, "-c", f"from {module} import {function}; {function}()"],
        env=environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT / "src")])),
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.stderr) == ("", "")
    assert ended.returncode == -signal.SIGINT


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_told_to_ignore_ctrl_c_does_so(tmp_path: Path, program: str):
    """As a shell tells those that it starts in the background."""
    (tmp_path / "typer.py").write_text(INTERRUPTED)
    module, function = PROGRAMS[program].split(":")
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    ended = subprocess.run(
        [sys.executable, "-c", f"{ignoring}; from {module} import {function}; {function}()"],
        env=environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT / "src")])),
        capture_output=True,
        text=True,
    )
    assert (ended.stdout, ended.stderr) == ("went on\n", "")
