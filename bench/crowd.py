"""Many workers in one process: ``python -m bench.crowd TARGET FIRST COUNT``, until SIGTERM.

Each has a connection, a stream and a heartbeat of its own, as if it were alone.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from bench.tasks import app
from jobqueue.api.grpc.remote import GrpcBackend
from jobqueue.worker.runtime import WorkerRuntime
from jobqueue.worker.settings import WorkerSettings


async def _hold(target: str, first: int, count: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    backends = [GrpcBackend(target) for _ in range(count)]
    workers = [
        WorkerRuntime(backend, app.registry, WorkerSettings(id=f"crowd-{first + n}"))
        for n, backend in enumerate(backends)
    ]
    for worker in workers:
        await worker.start()
    await stop.wait()
    await asyncio.gather(*(worker.stop() for worker in workers))
    await asyncio.gather(*(backend.stop() for backend in backends))


if __name__ == "__main__":
    uvloop.run(_hold(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
