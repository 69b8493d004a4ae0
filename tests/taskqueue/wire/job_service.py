"""A job service in a process of its own: ``python -m tests.taskqueue.wire.job_service PORT``."""

from __future__ import annotations

import asyncio
import sys

from jobqueue.api.grpc.taskqueue.host import ServiceHost
from jobqueue.services.job_ledger import JobLedger


async def main(port: int) -> None:
    host = ServiceHost("job")
    host.add_jobs(JobLedger())
    print(await host.start("127.0.0.1", port), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
