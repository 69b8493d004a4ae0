"""What the README shows first, and that the things it names exist.

Its programs and commands are run by tests/journeys/test_readme.py.
"""

from __future__ import annotations

import re

from tests.journeys.pages import ROOT, blocks

README = (ROOT / "README.md").read_text()


def test_the_first_program_is_seen_at_once() -> None:
    first = README.index("```python")
    end = README.index("```", first + 3)
    assert len(README[first:end].splitlines()) - 1 <= 30
    assert README[:first].count("\n") < 10


def test_the_commands_it_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(
        re.findall(r"^make ([a-z-]+)", "\n".join(blocks("README.md", "text")), re.MULTILINE)
    )
    assert named == {"run", "test"}
    assert named | {"demo", "bench"} <= targets


def test_the_files_it_links_to_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert missing == []
