"""A job that no connected worker takes waits, and that is told."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.core.job import JobQuery, JobSpec
from jobqueue.core.lifecycle import State
from jobqueue.core.queue import QueueSpec, WaitingType
from jobqueue.engine.unserved import Unserved
from tests.engine.rig import Rig, until


def types(*names: str) -> dict[str, Any]:
    return {"types": frozenset(names)}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobqueue.core.waiting.RECENT", -1.0)
    monkeypatch.setattr("jobqueue.engine.unserved._LOOK_EVERY", 3_600.0)


async def submit(rig: Rig, type: str, count: int = 1, queue: str = "default") -> list[str]:
    specs = [JobSpec(payload=b"x", type=type, queue=queue)] * count
    return [result.unwrap() for result in await rig.engine.submit(specs)]


async def hint(rig: Rig, job_id: str) -> str:
    return (await rig.engine.get(job_id)).hint


async def test_a_job_says_that_nobody_knows_its_type(rig: Rig):
    await rig.worker("w", slots=1, **types("b"))
    (job_id,) = await submit(rig, "a")
    assert await hint(rig, job_id) == "no connected worker takes type 'a' from queue 'default'"
    (job_id,) = await submit(rig, "")
    assert await hint(rig, job_id) == (
        "no connected worker takes jobs without a type from queue 'default'"
    )


async def test_a_job_says_that_nobody_serves_its_queue(rig: Rig):
    (job_id,) = await submit(rig, "a")
    assert await hint(rig, job_id) == "no connected worker takes jobs from queue 'default'"


async def test_a_job_that_somebody_takes_says_nothing(rig: Rig):
    (job_id,) = await submit(rig, "a")
    assert await hint(rig, job_id)
    await rig.worker("busy", **types("a"))
    assert await hint(rig, job_id) == "", "it is busy, but it will take it"


async def test_a_worker_of_every_type_and_queue_takes_all(rig: Rig):
    (job_id,) = await submit(rig, "a")
    await rig.worker("every", queues=("*",))
    assert await hint(rig, job_id) == ""


async def test_a_delayed_job_says_nothing_until_its_time(rig: Rig):
    job_id = await rig.submit(type="a", delay=60)
    assert await hint(rig, job_id) == ""
    rig.clock.advance(61)
    assert await hint(rig, job_id)


async def test_a_job_that_runs_or_ended_says_nothing(rig: Rig):
    worker, assignment = await rig.running(type="a")
    assert await hint(rig, assignment.id) == ""
    await worker.succeed(assignment)
    await worker.link.close()
    assert await hint(rig, assignment.id) == ""


async def test_a_drained_worker_takes_nothing_more(open_rig: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobqueue.core.waiting.RECENT", 0.0)
    rig: Rig = await open_rig()
    await rig.worker("w", slots=1, **types("a"))
    await rig.engine.drain_worker("w")
    (job_id,) = await submit(rig, "a")
    assert await hint(rig, job_id) == "no connected worker takes jobs from queue 'default'"


async def test_a_wait_whose_time_is_up_says_why(rig: Rig):
    (job_id,) = await submit(rig, "a")
    assert (await rig.engine.wait(job_id, 0.0)).hint
    assert [job.hint for job in (await rig.engine.list_jobs(JobQuery())).jobs] == [""]


async def test_many_reads_are_one_question(open_rig: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobqueue.core.waiting.RECENT", 3_600.0)
    rig: Rig = await open_rig()
    (job_id,) = await submit(rig, "a")
    for _ in range(20):
        await rig.engine.get(job_id)
    assert rig.store.calls.count("workers.all") == 1


@pytest.mark.usefixtures("fresh")
async def test_a_job_is_read_although_the_workers_cannot_be(open_rig: Any):
    rig: Rig = await open_rig()
    (job_id,) = await submit(rig, "a")
    rig.store.fail["workers.all"] = [Unavailable("away")] * 5
    job = await rig.engine.get(job_id)
    assert (job.state, job.hint) == (State.PENDING, "")
    (stats,) = await rig.engine.list_queues()
    assert stats.unserved == ()


@pytest.mark.usefixtures("fresh")
async def test_a_queue_lists_what_nobody_takes(open_rig: Any):
    rig: Rig = await open_rig()
    await rig.engine.create_queue(QueueSpec(name="other"))
    await rig.worker("w", **types("known"))
    await submit(rig, "a", 3)
    await submit(rig, "b", 10_001)
    await submit(rig, "known", 5)
    await submit(rig, "known", 2, "other")
    expected = (WaitingType("default", "b", 10_000), WaitingType("default", "a", 3))
    assert (await rig.engine.queue_stats("default")).unserved == expected
    assert [one.count for one in expected] == ["10000+", "3"]
    other = (WaitingType("other", "known", 2),)
    assert [s.unserved for s in await rig.engine.list_queues()] == [expected, other]


async def test_the_pool_that_steps_aside_takes_nothing(rig: Rig):
    await rig.worker("pool", fallback=True, **types("", "echo"))
    (job_id,) = await submit(rig, "echo")
    assert await hint(rig, job_id) == ""
    await rig.worker("app", **types("", "add"))
    assert await hint(rig, job_id) == "no connected worker takes type 'echo' from queue 'default'"


# -- the log -----------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [r.getMessage() for r in caplog.records if r.name == "jobqueue.engine.unserved"]
    caplog.clear()
    return lines


async def look(rig: Rig, times: int = 2) -> None:
    for _ in range(times):
        await rig.engine._unserved.tell()


@pytest.mark.usefixtures("fresh")
async def test_each_type_is_told_once(open_rig: Any, caplog: pytest.LogCaptureFixture):
    rig: Rig = await open_rig()
    await rig.worker("w", **types("known"))
    await submit(rig, "add", 200)
    await submit(rig, "known", 5)
    await look(rig, 1)
    assert told(caplog) == [], "a worker may be about to connect"
    await look(rig, 1)
    assert told(caplog) == [
        "200 jobs of type 'add' waiting in queue 'default': no connected worker takes this type"
        " from it; start one whose app has the task"
        " (jq-worker --app MODULE:ATTRIBUTE --queues default)"
    ]
    await submit(rig, "add", 200)
    await submit(rig, "")
    await look(rig, 3)
    (line,) = told(caplog)
    assert line.startswith("1 job without a type waiting in queue 'default': no connected worker")


@pytest.mark.usefixtures("fresh")
async def test_it_is_told_again_after_it_was_served(
    open_rig: Any, caplog: pytest.LogCaptureFixture
):
    rig: Rig = await open_rig()
    await submit(rig, "add")
    await look(rig)
    (line,) = told(caplog)
    assert "no connected worker takes jobs from it" in line
    worker = await rig.worker("w", slots=1, **types("add"))
    await worker.succeed(await worker.gets_one())
    await look(rig)
    await worker.link.close()
    await look(rig)
    assert told(caplog) == [], "nothing waits"
    await submit(rig, "add")
    await look(rig)
    assert len(told(caplog)) == 1


@pytest.mark.usefixtures("fresh")
async def test_types_that_clients_make_up_do_not_flood_the_log(
    open_rig: Any, caplog: pytest.LogCaptureFixture
):
    rig: Rig = await open_rig()
    await rig.engine.submit([JobSpec(payload=b"x", type=f"t{n}") for n in range(250)])
    await look(rig, 5)
    lines = told(caplog)
    assert len(lines) == 101
    assert lines[-1] == (
        "150 more types of jobs wait because no connected worker takes them;"
        " jq-ctl queue stats NAME lists them"
    )


async def test_only_the_leader_tells(
    open_pair: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    looked: list[object] = []

    async def tell(self: Unserved) -> None:
        looked.append(self)

    monkeypatch.setattr("jobqueue.engine.unserved._LOOK_EVERY", 0.01)
    monkeypatch.setattr(Unserved, "tell", tell)
    first, _ = await open_pair()
    await until(lambda: len(looked) > 5)
    assert set(looked) == {first.engine._unserved}
