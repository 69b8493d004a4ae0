"""Counts the lines of a part only while that part's own tests run.

`pytest --cov` counts the parts that jq:NFR-021 names (pyproject.toml). To count, Python tells a
tracer of every line of every module, so that tests take more than twice as long, those of other
parts as well, where nothing is asked about. Hence it goes on while modules are imported and while
a test in `tests/<part>/` or `tests/test_<part>.py` runs, and stops for all others. Who names parts
(`--cov=jobqueue.api`) gets all tests counted.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("_cov"):
        config.pluginmanager.register(PartsCounter(config), "parts-counter")


class PartsCounter:
    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._stopped: list[Coverage] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.turn_to(item.path)
        return (yield)

    def turn_to(self, test: Path) -> None:
        """Count, or do not, as befits the test that is next."""
        counter = self._stopped[-1] if self._stopped else Coverage.current()
        if counter is None or tests_a_part(test, self._root, parts(counter)):
            while self._stopped:
                self._stopped.pop(0).start()
            return
        # A process of xdist has two: one was begun before it knew what it is, and pytest-cov
        # leaves it there. If only the later one were stopped, it would go on.
        while (counter := Coverage.current()) is not None:
            counter.stop()
            self._stopped.insert(0, counter)


def parts(counter: Coverage) -> list[str]:
    """The parts whose lines are wanted; none if the command line says which."""
    if counter.get_option("run:source"):
        return []
    packages = counter.get_option("run:source_pkgs")
    assert isinstance(packages, list)
    return [package.rpartition(".")[2] for package in packages]


def tests_a_part(test: Path, root: Path, parts: list[str]) -> bool:
    """Whether the file tests one of them; every file does if there are none."""
    tests = root / "tests"
    return not parts or any(
        test == tests / f"test_{part}.py" or test.is_relative_to(tests / part) for part in parts
    )
