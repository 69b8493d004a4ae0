"""tests/plugin_signals.py: a run in the background, as a run of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
INNER = """
import signal, subprocess, sys

def test_inner():
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert said.stdout == "True\\n"
"""
# What a shell without job control does to a program that it starts in the background.
IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    " os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def inner_run(folder: Path, *plugins: str) -> int:
    (folder / "test_inner.py").write_text(INNER)
    told = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    command += [part for name in plugins for part in ("-p", name)]
    return subprocess.run(
        [sys.executable, "-c", IGNORING, *command, "test_inner.py"],
        cwd=folder,
        env=told,
        stdout=subprocess.DEVNULL,
    ).returncode


def test_programs_that_tests_start_can_be_interrupted(tmp_path: Path):
    assert inner_run(tmp_path, "tests.plugin_signals") == 0


def test_without_the_plugin_they_ignore_it(tmp_path: Path):
    """Else the test above shows nothing."""
    assert inner_run(tmp_path) == 1


def test_this_run_can_be_interrupted():
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
