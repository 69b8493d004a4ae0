"""Fails a test that leaves asyncio tasks or non-daemon threads behind.

Tasks are looked at after the test's own fixtures are torn down, threads after its event loop is
closed as well. ``@pytest.mark.leaky("why")`` turns the check off.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio

from tests.patience import Limit

GRACE = 1.0  # seconds that an ending task or thread may still take
_threads_before: pytest.StashKey[set[threading.Thread]] = pytest.StashKey()


@pytest.fixture(autouse=True)
def _no_leaked_tasks(request: pytest.FixtureRequest) -> None:
    is_async = inspect.iscoroutinefunction(getattr(request.node, "obj", None))
    if is_async and not request.node.get_closest_marker("leaky"):
        request.getfixturevalue("_task_guard")


@pytest_asyncio.fixture
async def _task_guard() -> AsyncIterator[None]:
    yield
    limit = Limit(GRACE)
    pause = 0.0
    while leaked := asyncio.all_tasks() - {asyncio.current_task()}:
        if limit.over:
            names = "\n".join(f"  {task!r}" for task in leaked)
            pytest.fail(f"the test left tasks behind:\n{names}", pytrace=False)
        await asyncio.sleep(pause)
        pause = 0.01


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_threads_before] = set(threading.enumerate())
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    if item.get_closest_marker("leaky") or _shares_fixtures(item):
        return
    limit = Limit(GRACE)
    while leaked := [t for t in _foreground_threads() if t not in item.stash[_threads_before]]:
        if limit.over:
            names = "\n".join(f"  {thread!r}" for thread in leaked)
            pytest.fail(f"the test left threads behind:\n{names}", pytrace=False)
        time.sleep(0.01)


def _foreground_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if not t.daemon]


def _shares_fixtures(item: pytest.Item) -> bool:
    """True when a fixture of ours outlives the test: then its threads may do so too."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return any(d.scope != "function" and d.baseid for ds in definitions.values() for d in ds)
