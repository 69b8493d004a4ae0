"""Named places where a test may make something happen. Unarmed, they cost a look into a dict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

_armed: dict[str, Callable[[], Awaitable[None]]] = {}


async def reach(name: str) -> None:
    """Pass that place."""
    action = _armed.get(name)
    if action is not None:
        await action()


@contextmanager
def armed(name: str, action: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Have that happen whenever the place is passed."""
    _armed[name] = action
    try:
        yield
    finally:
        del _armed[name]
