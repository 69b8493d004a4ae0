"""Batch tasks in every topology: each job of a batch is an ordinary job."""

from __future__ import annotations

from dataclasses import dataclass

from jobqueue import Abort, Context, State
from jobqueue.core.lifecycle import Reason
from tests.scenarios.place import Place


@dataclass
class Doc:
    id: int
    text: str


async def test_each_job_of_a_batch_ends_in_its_own_way(place: Place) -> None:
    app = await place.app()
    sizes: list[int] = []

    @app.task(batch=8, batch_wait=1, max_retries=1, backoff=0)
    async def index(docs: list[Doc], contexts: list[Context]) -> list[str | Exception]:
        sizes.append(len(docs))
        return [_one(doc, ctx) for doc, ctx in zip(docs, contexts, strict=True)]

    async with place.worker(app, concurrency=8):
        texts = ("fine", "", "flaky", "hopeless")
        jobs = await index.submit_many([(Doc(n, text),) for n, text in enumerate(texts)])
        fine, empty, flaky, hopeless = [await place.ended(job) for job in jobs]
        assert await place.result(jobs[0]) == f"0 at 1 of {jobs[0].id}"
        assert await place.result(jobs[2]) == f"2 at 2 of {jobs[2].id}"
    assert (fine.state, flaky.state, flaky.attempt) == (State.DONE, State.DONE, 2)
    assert (empty.reason, empty.attempt) == (Reason.RETRIES_EXHAUSTED, 2)
    assert empty.error.startswith("ValueError: nothing to index")
    assert (hopeless.reason, hopeless.attempt) == (Reason.NOT_RETRYABLE, 1)
    assert sum(sizes) == 6
    assert sizes[0] == 4
    ways = [[event.reason for event in await job.history()] for job in jobs]
    assert ways[0] == [Reason.SUBMITTED, Reason.ASSIGNED, Reason.STARTED, Reason.SUCCEEDED]


def _one(doc: Doc, ctx: Context) -> str | Exception:
    if doc.text == "hopeless":
        return Abort("no")
    if not doc.text or (doc.text == "flaky" and ctx.attempt == 1):
        return ValueError("nothing to index")
    return f"{doc.id} at {ctx.attempt} of {ctx.job_id}"


async def test_a_def_handler_takes_batches_of_single_jobs(place: Place) -> None:
    app = await place.app()

    @app.task(batch=2, batch_wait=0.01)
    def add(a: list[int], b: list[int]) -> list[int]:
        return [x + y for x, y in zip(a, b, strict=True)]

    async with place.worker(app, concurrency=2):
        assert await place.result(await add.submit(1, 2)) == 3
        # A payload that was not submitted by the SDK is that of one job.
        assert await place.result(await app.submit("add", {"a": 3, "b": 4})) == 7


async def test_a_handler_that_raises_fails_all_jobs_of_its_batch(place: Place) -> None:
    app = await place.app()

    @app.task(batch=3, batch_wait=1, max_retries=0)
    def broken(ns: list[int]) -> list[int]:
        raise OSError(f"no room for {len(ns)}")

    async with place.worker(app, concurrency=3):
        jobs = await broken.submit_many([(n,) for n in range(3)])
        for job in [await place.ended(job) for job in jobs]:
            assert job.state is State.DEAD_LETTERED
            assert job.error.startswith("OSError: no room for 3\n")


async def test_a_cancel_of_one_job_leaves_the_others_of_its_batch(place: Place) -> None:
    app = await place.app()

    @app.task(batch=2, batch_wait=1)
    async def careless(ns: list[int], contexts: list[Context]) -> list[int]:
        first = app.job(contexts[0].job_id)
        await place.until(first, lambda job: job.state is State.RUNNING, "running")
        assert (await first.cancel()).requested
        return ns

    async with place.worker(app, concurrency=2):
        jobs = await careless.submit_many([(1,), (2,)])
        cancelled, done = [await place.ended(job) for job in jobs]
        assert (cancelled.reason, cancelled.result) == (Reason.CANCELLED, None)
        assert await place.result(jobs[1]) == 2
        assert done.attempt == 1
