"""How a bound on speed is shown on a machine that others use too.

Others can only make a figure worse. So a bound is kept when one measurement of a few keeps it,
and broken when none does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from jobqueue.bench.machine import calm, stolen_seconds

T = TypeVar("T")

TRIES = 5
_PATIENCE = 5.0  # seconds for the machine to become quiet


async def kept(
    measure: Callable[[], Awaitable[T]], bound: Callable[[T], bool], tries: int = TRIES
) -> None:
    """Fail, and say what was measured, unless a measurement keeps the bound."""
    seen: list[str] = []
    for _ in range(tries):
        quiet = await calm(_PATIENCE)
        before = stolen_seconds()
        figure = await measure()
        if bound(figure):
            return
        stolen = stolen_seconds() - before
        seen.append(f"{figure!r} ({'quiet' if quiet else 'busy'} before, {stolen:.1f} s stolen)")
    pytest.fail(f"the bound was kept in none of {tries} measurements: {'; '.join(seen)}")
