"""A bad report of one worker does not stop the reports of other workers."""

from __future__ import annotations

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import MAX_SEQ, Transition, WorkerInfo
from jobqueue.core.lifecycle import Move
from jobqueue.engine.engine import Engine
from tests.api.grpc.inbox import RecordingInbox


def info(worker_id: str) -> WorkerInfo:
    return WorkerInfo(
        id=worker_id, incarnation=1, hostname="h", pid=1, concurrency=4, queues=("default",)
    )


@pytest.mark.parametrize("seq", [-(2**63), -1, 0, MAX_SEQ + 1, 2**63 - 1])
@pytest.mark.parametrize("move", [Move.START, Move.SUCCEED, Move.FAIL])
async def test_a_number_that_no_job_has_is_refused(engine: Engine, seq: int, move: Move):
    """Such a number must not fail the reports of other workers in the same batch."""
    link = await engine.connect(info("w"), RecordingInbox())
    with pytest.raises(InvalidArgument, match="seq"):
        await link.report([Transition(seq, move, lease=1)])
