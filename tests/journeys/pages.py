"""The code blocks of the README and of the docs, and the files that they speak of."""

from __future__ import annotations

import re
from pathlib import Path

from tests.journeys.machine import Machine

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in that language, in order."""
    text = (ROOT / page).read_text()
    return [block for found, block in BLOCK.findall(text) if found == language]


def write_files(machine: Machine) -> None:
    """Write the README's programs that name their file (`# tasks.py`)."""
    for text in blocks("README.md", "python"):
        if named := re.match(r"# (\w+\.py)\n", text):
            machine.write(named[1], text)


def shell(machine: Machine, prelude: str, text: str) -> str:
    """Run a block of commands; the first that fails fails the test. Returns what it printed."""
    script = f"set -euo pipefail\n{prelude}\n{text}"
    return machine.succeed("bash", "-c", script, timeout=120)
