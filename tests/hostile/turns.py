"""What is done between two turns of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


class Turns:
    """How often functions are called between two turns of the loop, at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._calls = 0
        self.total = 0
        self.most = 0
        self.rounds = 0  # of the loop

    def count(self, owner: Any, name: str, counts: Callable[..., bool] = lambda *_: True) -> None:
        inner = getattr(owner, name)

        def counting(*args: Any) -> Any:
            if counts(*args):
                self._calls += 1
                self.total += 1
            return inner(*args)

        self._monkeypatch.setattr(owner, name, counting)

    async def run(self) -> None:
        while True:
            self.rounds += 1
            self.most = max(self.most, self._calls)
            self._calls = 0
            await asyncio.sleep(0)
