"""A worker in the user's own program whose slots do not come free."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from jobqueue import JobQueue
from jobqueue.client.working import work
from jobqueue.core.errors import Unavailable
from tests import patience


@pytest.mark.req("jq:FR-021")
async def test_a_program_that_is_a_worker_learns_that_no_slot_is_left() -> None:
    release = threading.Event()
    app = JobQueue("memory://")

    @app.task(timeout=0.05)
    def hang() -> None:
        release.wait(patience.longest(30))

    try:
        async with app:
            await hang.submit()
            block = app._worker(None, 1, recycle=True)  # as run_worker has it
            block.settings = replace(block.settings, cancel_grace=0.01)
            with pytest.raises(Unavailable, match="all slots of this worker are blocked"):
                async with patience.timeout(30):
                    await work(block, signals=False)
    finally:
        release.set()
