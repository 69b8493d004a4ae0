"""CPU work in processes of its own: it uses every core, and is killed when its time is up."""

import asyncio
import os

from jobqueue import JobFailed, JobQueue

app = JobQueue("memory://")


@app.task(executor="process", timeout=60)
def count_primes(below: int) -> tuple[int, int]:
    sieve = bytearray([1]) * below
    sieve[:2] = b"\0\0"
    for n in range(2, int(below**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, below, n)))
    return sum(sieve), os.getpid()


@app.task(executor="process", timeout=0.5, max_retries=0)
def endless() -> None:
    while True:  # no await, no check: only the end of its process ends this
        pass


async def main() -> None:
    async with app, app.worker(concurrency=2):
        jobs = await count_primes.submit_many([(100_000,), (200_000,)])
        for job in jobs:
            primes, pid = await job.result(timeout=60)
            print(primes, "primes", "in a process of its own" if pid != os.getpid() else "here")
        try:
            await (await endless.submit()).result(timeout=60)
        except JobFailed as failed:
            print("killed:", failed.error)


if __name__ == "__main__":
    asyncio.run(main())
