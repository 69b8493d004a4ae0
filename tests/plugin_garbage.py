"""Keeps the garbage collector from looking at ten thousand tests again and again.

What the collection of tests made stays until the end of the run. Looking for garbage in it costs
time while it grows, and in each full look during the run.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


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
