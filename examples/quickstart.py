"""A task, a worker and a result, in one process. Jobs are kept in ``jobs.db``."""

import asyncio

from jobqueue import Context, JobQueue

app = JobQueue("sqlite:///jobs.db")


@app.task(queue="mail", max_retries=5, timeout=30)
async def send(to: str, subject: str, ctx: Context) -> dict[str, str]:
    await asyncio.sleep(0.01)  # talk to the mail server
    return {"to": to, "subject": subject, "job": ctx.job_id}


async def main() -> None:
    async with app.worker():
        job = await send.submit("a@b.c", "hello")
        print("submitted", job.id)
        print("result", await job.result(timeout=10))
        async for event in job.events():
            print(f"{event.version}. {event.to_state.name} ({event.reason})")


if __name__ == "__main__":
    asyncio.run(main())
