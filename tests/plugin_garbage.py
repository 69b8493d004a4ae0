"""Keeps the garbage collector from scanning ten thousand tests again and again.

What the collection of tests made stays until the end of the run. Looking for garbage in it costs
time while it grows, and in each full look during the run. Afterwards the collector looks less often
than it does by default: its looks took a twelfth of all tests' time.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

OBJECTS = 20_000  # made and not freed before the youngest are looked at; Python's default: 700


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS)
