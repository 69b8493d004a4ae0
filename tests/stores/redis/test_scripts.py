"""The sections of ``scripts/*.lua``."""

from __future__ import annotations

from importlib import resources

import pytest

from jobqueue.stores.redis import runner


@pytest.mark.parametrize("name", sorted(runner._sections()))
def test_a_section_comes_once_and_behind_those_that_it_needs(name: str):
    text = runner.script(name).text.decode()
    ends = []
    for part in ("common", *runner._sections()[name][0], name):
        assert text.count(runner._sections()[part][1]) == 1
        ends.append(text.index(runner._sections()[part][1]))
    assert ends[0] == min(ends)
    assert ends[-1] == max(ends)


def test_every_section_is_called_or_needed():
    sections = runner._sections()
    needed = {"common"}.union(*(needs for needs, _ in sections.values()))
    package = resources.files("jobqueue.stores.redis")
    code = "".join(file.read_text() for file in package.iterdir() if file.name.endswith(".py"))
    assert [name for name in sections if name not in needed and f'"{name}"' not in code] == []
