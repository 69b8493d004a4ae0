"""What happens to a job that fails: retries, then a dead letter, then an operator's retry."""

import asyncio

from jobqueue import Abort, Context, JobFailed, JobQueue, RetryLater

app = JobQueue("memory://")
account_exists = False


@app.task(max_retries=3)
async def flaky(ctx: Context) -> str:
    """An upstream that answers the third time. Any exception is retried, with growing delays."""
    if ctx.attempt < 3:
        raise RetryLater(0.05, "upstream is busy")  # this exception chooses the delay itself
    return f"done at attempt {ctx.attempt}"


@app.task
async def charge(account: str) -> str:
    if not account_exists:
        raise Abort(f"there is no account {account!r}")  # trying again would not help
    return f"charged {account}"


async def main() -> None:
    global account_exists  # noqa: PLW0603 - stands for a row in somebody's database
    async with app, app.worker():
        print(await (await flaky.submit()).result(timeout=10))

        job = await charge.submit("alice")
        try:
            await job.result(timeout=10)
        except JobFailed as failed:
            print("failed:", failed.reason, "-", failed.error)

        for dead in (await app.operator.dead_letters()).jobs:
            print("dead letter:", dead.type, dead.payload.decode())

        account_exists = True
        await job.retry()
        print(await job.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
