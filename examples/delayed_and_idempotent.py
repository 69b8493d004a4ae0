"""Delayed jobs, priorities, and idempotency keys: a submit that may safely be repeated."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from jobqueue import JobQueue, JobQueueError

app = JobQueue("sqlite:///jobs.db")


@app.task
async def remind(text: str) -> str:
    return text


@app.task(queue="billing")
async def charge(order: int, cents: int) -> str:
    return f"order {order}: {cents} cents"


async def main() -> None:
    async with app.worker():
        started = time.monotonic()
        job = await remind.options(delay=0.3).submit("stretch your legs")
        print(await job.result(timeout=10), "- after", round(time.monotonic() - started, 1), "s")

        tomorrow = datetime.now(UTC) + timedelta(days=1)
        later = await remind.options(run_at=tomorrow, priority=9).submit("water the plants")
        print("waiting:", (await later.status()).state.name)
        await later.cancel()

        key = f"order-42-{time.time_ns()}"
        first = await charge.options(key=key).submit(42, 999)
        again = await charge.options(key=key).submit(42, 999)
        print("one job:", first.id == again.id, "- made by the second call:", again.created)
        try:
            await charge.options(key=key).submit(42, 1)
        except JobQueueError as error:
            print("refused:", error.code)
        print(await first.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
