"""Periodic tasks: cron fields on a task, and a schedule with arguments. Any number of workers may
run this: the queue takes one job for each tick."""

import asyncio

from jobqueue import Context, JobQueue

app = JobQueue("sqlite:///jobs.db")
ran: asyncio.Queue[str] = asyncio.Queue()


@app.task(cron="* * * * *")
async def clean_up(ctx: Context) -> None:
    await ran.put(f"{ctx.labels['cron']} ran")


@app.task(queue="reports", max_retries=5)
async def report(kind: str) -> None:
    await ran.put(f"the {kind} report ran")


# At 06:30 on weekdays, by the clocks of Zurich; and one each minute, so that there is one to see.
app.periodic("30 6 * * mon-fri", report, "daily", timezone="Europe/Zurich", name="daily-report")
app.periodic("*/1 * * * *", report, "minute", name="minute-report", priority=9)


async def main() -> None:
    # Both are due at once: the minute that has begun is caught up with (`catch_up`, one hour).
    async with app.worker(), app.worker():
        print(*sorted([await ran.get(), await ran.get()]), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
