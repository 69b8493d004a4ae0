"""What every other scenario leans on."""

from __future__ import annotations

from pathlib import Path

from jobqueue import Abort, State
from tests.scenarios.exceptions import EXCEPTIONS
from tests.scenarios.place import PLACES, Place


async def test_a_job_is_submitted_run_and_read(place: Place) -> None:
    app = await place.app()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    async def hopeless() -> None:
        raise Abort("never")

    async with place.worker(app):
        job = await add.submit(1, 2)
        assert await place.result(job) == 3
        assert (await job.status()).state is State.DONE
        states = [event.to_state for event in await job.history()]
        assert states == [State.PENDING, State.ASSIGNED, State.RUNNING, State.DONE]
        assert (await place.ended(await hopeless.submit())).state is State.DEAD_LETTERED
        assert await place.result(await add.options(delay=0.01).submit(2, 2)) == 4


async def test_jobs_wait_for_the_worker(place: Place) -> None:
    app = await place.app()

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    job = await add.submit(1, 2)
    assert (await job.status()).state is State.PENDING
    assert (await app.operator.queue_stats("default")).depth[State.PENDING] == 1
    assert await app.operator.list_workers() == []
    async with place.worker(app, concurrency=1):
        assert await place.result(job) == 3
        assert len(await app.operator.list_workers()) == 1


async def test_an_app_reads_what_another_has_submitted(place: Place) -> None:
    one, other = await place.app(), await place.app()

    @one.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with place.worker(one):
        job = await other.submit("add", {"a": 1, "b": 2})
        assert await place.result(job) == 3
        assert await one.job(job.id, add).result() == 3


def test_exceptions_name_places_and_scenarios_that_exist() -> None:
    texts = [file.read_text() for file in Path(__file__).parent.glob("test_*.py")]
    for place, scenario in EXCEPTIONS:
        assert place in PLACES
        assert any(f"def {scenario}(" in text for text in texts), scenario
