"""Jobs that go on while containers are killed, and the count of what became of them."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from jobqueue import JobQueue
from jobqueue.client.handle import JobHandle
from jobqueue.core.lifecycle import State
from tests import patience
from tests.containers.project import Project
from tests.history.checker import Evidence, assert_kept

LONG = 60  # jobs that a killed worker has under way
SECONDS = 2.0  # that each of them takes


async def every_job_ends_once(system: Project, app: JobQueue, server: str, worker: str) -> None:
    """Kill the server's and the worker's container while jobs are submitted and run.

    Counted: every key that was submitted is one job, also where a killed server had not answered;
    every job is DONE, by one accepted result, which is that of its own payload; the queue has
    nothing else in it. The worker is killed while it holds jobs, and these run again.
    """
    before = await _depth(app)
    assert before.keys() <= {State.DONE}
    long = [
        await app.submit("sleep", {"seconds": SECONDS + n / 1000}, key=f"{worker} sleeps {n}")
        for n in range(LONG)
    ]
    over = asyncio.Event()
    submitting = asyncio.create_task(_keep_submitting(app, over))
    try:
        await _stop_while_busy(system, app, worker)
        for service in (worker, server):
            await asyncio.to_thread(system.kill_process, service)
    finally:
        over.set()
    jobs = {
        **{job.id: (job, {"slept": SECONDS + n / 1000}) for n, job in enumerate(long)},
        **{job.id: (job, n) for n, job in enumerate(await submitting)},
    }
    async with patience.timeout(240):
        results = await asyncio.gather(*(job.result() for job, _ in jobs.values()))
    assert results == [expected for _, expected in jobs.values()]

    histories = [await job.history() for job, _ in jobs.values()]
    assert_kept(
        Evidence(
            events=[event for history in histories for event in history],
            accepted=jobs.keys(),
            told_done=jobs.keys(),
            jobs={job.id: await job.status() for job, _ in jobs.values()},
            settled=True,
            dead_letters_allowed=False,
        )
    )
    # A key that was submitted again is no second job, and nothing is left over.
    assert await _depth(app) == {State.DONE: before.get(State.DONE, 0) + len(jobs)}
    again = sum(history[-1].attempt > 1 for history in histories)
    assert again > 0
    print(f"{len(jobs)} jobs, each DONE once; {again} of them ran again after the kill of {worker}")


async def _depth(app: JobQueue) -> dict[State, int]:
    """How many jobs are in each state that has some."""
    found = (await app.operator.queue_stats("default")).depth
    return {state: jobs for state, jobs in found.items() if jobs}


async def _keep_submitting(app: JobQueue, over: asyncio.Event) -> list[JobHandle[Any]]:
    jobs: list[JobHandle[Any]] = []
    while not over.is_set():
        jobs.append(await app.submit("echo", len(jobs), key=f"echo {len(jobs)}"))
        await asyncio.sleep(0.01)  # the killing is waited for, and not the speed of submits
    return jobs


async def _stop_while_busy(system: Project, app: JobQueue, worker: str) -> None:
    """Halt its process at a moment when it holds jobs, so that the kill takes them."""
    host = system.look(worker)["Config"]["Hostname"]
    async with patience.timeout(60):
        while True:
            system.signal(worker, signal.SIGSTOP)
            workers = await app.operator.list_workers()
            if any(one.running for one in workers if one.info.hostname == host):
                return
            system.signal(worker, signal.SIGCONT)
            await asyncio.sleep(0.1)
