"""The engine repeats submits whose key an open transaction of another program holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobqueue.core.decide import key_held
from jobqueue.core.errors import KeyHeld, Unavailable
from jobqueue.core.job import JobSpec, NewJob, SubmitStatus
from jobqueue.core.store import Claim, Submission
from tests.engine.rig import Rig


class Held:
    """The jobs part of a store that refuses the key ``held`` for a number of submits."""

    def __init__(self, jobs: Any, submits: int) -> None:
        self._jobs = jobs
        self.left = submits
        self.batches: list[list[str | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    async def submit(self, jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        self.batches.append([job.spec.key for job in jobs])
        held = [job for job in jobs if job.spec.key == "held" and self.left]
        self.left = max(0, self.left - 1)
        free = [job for job in jobs if job not in held]
        answers = iter((await self._jobs.submit(free)).results)
        return Submission([key_held(job.spec) if job in held else next(answers) for job in jobs])


def hold(rig: Rig, submits: int) -> Held:
    held = Held(rig.memory.jobs, submits)
    rig.store.jobs = held  # type: ignore[attr-defined]
    return held


SPECS = [JobSpec(payload=b"x", key=key) for key in ("a", "held", "b")]


async def test_only_the_job_under_the_held_key_is_sent_again(rig: Rig):
    held = hold(rig, 3)
    results = await rig.engine.submit(SPECS)
    assert [one.status for one in results] == [SubmitStatus.ACCEPTED] * 3
    assert held.batches == [["a", "held", "b"], ["held"], ["held"], ["held"]]


async def test_a_key_that_stays_held_is_refused_in_the_end(rig: Rig):
    hold(rig, 1_000)
    results = await rig.engine.submit(SPECS)
    assert [one.status for one in results] == [
        SubmitStatus.ACCEPTED,
        SubmitStatus.REFUSED,
        SubmitStatus.ACCEPTED,
    ]
    error = results[1].error
    assert isinstance(error, KeyHeld)
    assert "'held' is in use by a database transaction that has not ended" in error.message


async def test_a_failure_of_the_store_meanwhile_is_the_held_jobs_alone(rig: Rig):
    held = hold(rig, 1)
    plain = held.submit

    async def fail_later(jobs: Sequence[NewJob], claims: Sequence[Claim] = ()) -> Submission:
        if held.batches:
            raise Unavailable("the store is away")
        return await plain(jobs, claims)

    held.submit = fail_later  # type: ignore[method-assign]
    results = await rig.engine.submit(SPECS)
    assert [one.status for one in results] == [
        SubmitStatus.ACCEPTED,
        SubmitStatus.REFUSED,
        SubmitStatus.ACCEPTED,
    ]
    assert str(results[1].error) == "the store is away"
