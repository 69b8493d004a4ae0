"""The pages for developers name files that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "docs/internals.md", "docs/testing.md", "docs/security.md")
NAMED = re.compile(r"`([\w./-]+\.(?:py|sql|lua|proto))")


@pytest.mark.parametrize("page", PAGES)
def test_a_named_file_exists(page: str) -> None:
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    named = set(NAMED.findall((ROOT / page).read_text(encoding="utf-8")))
    missing = {one for one in named if not any(f"/{path}".endswith(f"/{one}") for path in known)}
    assert not missing
