"""A server that takes nothing more while a message is being written to it.

A stream that is given up during a write raises CancelledError there. That is not a cancel of the
task that writes: it has to answer its callers and to connect again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.core.errors import OutcomeUnknown
from jobqueue.core.job import JobSpec, Transition
from tests import patience
from tests.api.grpc.inbox import RecordingInbox

SMALL = [JobSpec(payload=b"x")]
WITHIN = 40.0  # seconds; a defect shows as a wait without end


class Stallable:
    """A real stream whose writes can be made to wait, as grpc's do when windows and buffers are
    full. grpc ends such a write when the stream is cancelled, or only when the system gives the
    connection up (``late``)."""

    def __init__(self, stream: Any, *, late: bool) -> None:
        self._stream = stream
        self._late = late
        self._cancelled = asyncio.Event()
        self.stalled = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def write(self, request: Any) -> None:
        if not self.stalled:
            await self._stream.write(request)
            return
        await (asyncio.Event() if self._late else self._cancelled).wait()
        raise asyncio.CancelledError

    def cancel(self) -> bool:
        self._cancelled.set()
        return bool(self._stream.cancel())


@pytest_asyncio.fixture(params=[False, True], ids=["ends-with-its-stream", "ends-late"])
async def streams(request: pytest.FixtureRequest, remote: GrpcBackend) -> list[Stallable]:
    """Those that the client opens."""
    opened: list[Stallable] = []

    def stallable(open_stream: Any) -> Any:
        def open_stallable(**options: Any) -> Stallable:
            opened.append(Stallable(open_stream(**options), late=request.param))
            return opened[-1]

        return open_stallable

    server: Any = remote._servers.pick()
    server.client.SubmitStream = stallable(server.client.SubmitStream)
    server.worker.Connect = stallable(server.worker.Connect)
    return opened


@pytest.mark.req("jq:NFR-005")
async def test_a_submit_that_cannot_be_written_is_answered_and_the_next_one_is_taken(
    remote, streams
):
    remote._servers.timeout = 0.2
    await remote.submit(SMALL)
    streams[0].stalled = True
    async with patience.timeout(WITHIN):
        with pytest.raises(OutcomeUnknown):
            await remote.submit(SMALL)
        remote._servers.timeout = WITHIN
        (result,) = await remote.submit(SMALL)
    assert result.unwrap()
    assert len(streams) == 2


@pytest.mark.req("jq:FR-021")
async def test_a_worker_whose_report_cannot_be_written_connects_again(
    engine, remote, streams, worker_info
):
    await engine.submit(SMALL)
    inbox = RecordingInbox()
    link = await remote.connect(worker_info(), inbox)
    link.grant(1)
    await inbox.until(lambda inbox: inbox.jobs)
    (job,) = inbox.jobs
    report = [Transition.succeeded(job.seq, job.lease, b"done")]
    streams[0].stalled = True
    server = remote._servers.pick()
    server.timeout = 0.2
    with pytest.raises(OutcomeUnknown):
        await link.report(report, freed=1)
    server.timeout = WITHIN
    await engine.until(lambda: len(engine.links) == 2, within=WITHIN)
    assert await link.report(report, freed=1) == [True]
    await link.close()
