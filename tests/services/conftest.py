"""Folders that servers can live in, and test runs inside test runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import patience
from tests.services.places import new_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that servers can enter."""
    with new_folder() as made:
        yield made


def environment(**extra: str) -> dict[str, str]:
    """Without what this run was told about its servers."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith(("JQ_", "PYTEST_"))}
    return kept | extra


InnerRun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def inner_run(tmp_path: Path) -> InnerRun:
    """Run a test file in a pytest of its own, with our plugins."""

    def run(text: str, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            inner_command(tmp_path, text, *args),
            cwd=ROOT,
            env=environment(**extra),
            capture_output=True,
            text=True,
            timeout=patience.longest(120),
        )

    return run


def inner_command(folder: Path, text: str, *args: str) -> list[str]:
    (folder / "test_inner.py").write_text(text)
    return [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "pyproject.toml"),
        *("--rootdir", str(folder), "-p", "tests.services.plugin", "-q", *args),
        str(folder / "test_inner.py"),
    ]
