"""What has to be done now and then, by whoever comes by: nothing waits for it."""

from __future__ import annotations

import time
from typing import Any

from jobqueue.stores.postgres.database import Database
from jobqueue.stores.postgres.statements import SQL

_EVERY = 1.0  # seconds; expired keys and differences are in nobody's way
_KEYS_AT_ONCE = 10_000
_FOLD_EVERY = 500  # writes of this process


class Chores:
    """Expired keys are removed, and the differences that each write adds are folded."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._due_at = 0.0
        self._writes_since_fold = 0

    def wrote(self) -> None:
        """A write has added differences."""
        self._writes_since_fold += 1

    async def do(self) -> None:
        """Do what is due."""
        if time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + _EVERY
        now = self._database.now()

        async def work(db: Any) -> None:
            await db.execute(SQL["expire_keys"], now, _KEYS_AT_ONCE)
            if self._writes_since_fold >= _FOLD_EVERY:
                self._writes_since_fold = 0
                await db.execute(SQL["fold"])

        await self._database.writing.write("chores", work, again=work)
