"""Programs that submit equal jobs at once are killed: each key has one job, and none is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from jobqueue.core.job import Job
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import JobFilter, Store
from tests import patience
from tests.faults.processes import ROOT
from tests.faults.unique_app import KEYS, store_of, submit, unique_key

SEED = int(os.environ.get("JQ_TEST_KILL_SEED", "0")) or random.randrange(1, 2**32)
WAITS = {State.PENDING, State.FAILED}

pytestmark = [pytest.mark.faults, pytest.mark.slow]


class Program:
    """One of the programs, and the answers that it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answers: list[tuple[str, str, str]] = []
        self.reader = asyncio.create_task(self._read())
        self.some = asyncio.Event()

    @classmethod
    async def start(cls, url: str, seed: int) -> Program:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.faults.unique_app", url, str(seed)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            )
        )

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while (line := await self.process.stdout.readline()).endswith(b"\n"):
            self.answers += [(key, status, job_id) for key, status, job_id in json.loads(line)]
            self.some.set()

    async def says_more(self) -> None:
        self.some.clear()
        await patience.wait_for(self.some.wait(), 20)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self.reader

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"over\n")
        assert await patience.wait_for(self.process.wait(), 20) == 0
        await self.reader


async def all_jobs(store: Store) -> list[Job]:
    jobs: list[Job] = []
    before: int | None = None
    while page := await store.reads.list_jobs(JobFilter(before_seq=before, limit=500)):
        jobs += page
        before = page[-1].seq
    return jobs


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.integration),
        pytest.param("redis", marks=pytest.mark.integration),
    ],
)
async def test_one_job_of_a_key_is_there_after_kills(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    print(f"JQ_TEST_KILL_SEED={SEED}")
    draw = random.Random(SEED)
    if kind == "sqlite":
        url = f"sqlite://{tmp_path / 'jobs.db'}"
    else:
        url = request.getfixturevalue("postgres_dsn" if kind == "postgres" else "redis_url")
    programs = [await Program.start(url, seed) for seed in range(3)]
    living = list(programs)
    for one in living:
        await one.says_more()
    for kill in range(3):
        for _ in range(draw.randrange(1, 5)):
            await draw.choice(living).says_more()
        victim = living.pop(draw.randrange(len(living)))
        await victim.kill()
        living.append(await Program.start(url, 10 + kill))
        programs.append(living[-1])
        await living[-1].says_more()
    for one in living:
        await one.end()
    answers = [answer for one in programs for answer in one.answers]
    assert {status for _, status, _ in answers} == {"accepted", "existing"}

    store = store_of(url)
    await store.open()
    try:
        jobs = {job.id: job for job in await all_jobs(store)}
        for key, _, job_id in answers:
            unique = jobs[job_id].spec.unique  # KeyError: it was lost
            assert unique is not None
            assert unique.key == key
        by_key = defaultdict(list)
        for job in jobs.values():
            assert job.spec.unique is not None
            by_key[job.spec.unique.key].append(job)
            if job.state is State.DEAD_LETTERED:
                assert job.reason is Reason.SUPERSEDED
        for n in range(KEYS):
            unfinished = [
                job for job in by_key[f"k{n}"] if job.state not in (State.DONE, State.DEAD_LETTERED)
            ]
            if unique_key(n).on_conflict == "replace":
                unfinished = [job for job in unfinished if job.state in WAITS]
            assert len(unfinished) <= 1, (n, unfinished)
            # The key is not stuck: the next submit finds that job, replaces it, or is accepted.
            ((_, status, job_id),) = await submit(store, [n])
            if unfinished and unique_key(n).on_conflict == "existing":
                assert (status, job_id) == ("existing", unfinished[0].id)
            else:
                assert status == "accepted"
    finally:
        await store.close()
