"""Talks to the processes of ``child.py``."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests import patience


class Child:
    """A process that speaks lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def hears(self) -> Any:
        line = await patience.wait_for(self._out.readline(), 20)
        assert line, "the child ended"
        return json.loads(line)

    async def rest(self) -> list[Any]:
        return [json.loads(line) for line in (await self._out.read()).splitlines(keepends=True)]

    def tell(self, word: str = "go") -> None:
        self._in.write(f"{word}\n".encode())
