"""A job service in a process of its own: ``python -m tests.taskqueue.wire.job_service PORT``."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from jobqueue.taskqueue.components.state import JobLedger
from jobqueue.taskqueue.grpc.host import ServiceHost
from jobqueue.taskqueue.grpc.servicers import JobServicer


async def main(port: int) -> None:
    host = ServiceHost("job")
    host.add(partial(JobServicer, JobLedger()))
    print(await host.start("127.0.0.1", port), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
