"""Heartbeats on their way to the backend, which takes a thread for each."""

from __future__ import annotations

import asyncio
from typing import Protocol

from jobqueue.access.budgets import MessageBytes, Room
from jobqueue.api.grpc.calls import Calls
from jobqueue.api.grpc.codec.work import leases_from_pb, overrun_of, progress_from_pb
from jobqueue.core.job import Pulse
from jobqueue.core.progress import Progress
from jobqueue.core.waiting import TURN, account, turn
from jobqueue.pb.jq.v1 import worker_pb2 as pb

# Threads of one account. The default executor has five or more: there is one for others. Stores
# take few heartbeats side by side.
_LANES = 4


class Tell(Protocol):
    """Takes a heartbeat. Blocking."""

    def __call__(
        self,
        leases: list[int],
        begun: list[int],
        complete: bool,
        *,
        progress: dict[int, Progress],
        overrun: int | None,
    ) -> Pulse: ...


class Beats:
    """Each account has its own line, so that no account waits for the heartbeats of another."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lanes = MessageBytes(1, per_caller=_LANES)

    async def pulse(self, beat: pb.Beat | pb.HeartbeatRequest, tell: Tell) -> Pulse:
        """Tell the backend of a heartbeat. It is read in its turn: its lists are large then."""
        lane = Room(self._lanes, account.get())
        try:
            await lane.take()
            if len(beat.leases) + len(beat.begun) > TURN:
                await turn()
            told = asyncio.to_thread(
                tell,
                leases_from_pb(beat.leases),
                leases_from_pb(beat.begun),
                not beat.incomplete,
                progress=await progress_from_pb(beat.progress),
                overrun=overrun_of(beat),
            )
        except BaseException:
            lane.close()
            raise
        # A thread goes on when its call is given up, and so does what it takes.
        thread = self._calls.own(told)
        thread.add_done_callback(lambda _: lane.close())
        return await asyncio.shield(thread)
