"""The tests that users write for their own tasks: inline, jobs mean what they mean elsewhere."""

from __future__ import annotations

import json

import pytest

from tests.journeys.machine import Machine

TASKS = """
import asyncio
import os

from jobqueue import Context, JobQueue, QueueSpec

app = JobQueue(
    os.environ.get("JOBS", "postgresql://nobody@127.0.0.1:1/nothing"),
    queues=["eu", "us", QueueSpec(name="once", max_retries=0)],
)


@app.task(queue="once")
async def charge(amount: int) -> int:
    if amount < 0:
        raise ValueError("no refunds")
    return amount


@app.task(queue="eu")
def export(rows: int) -> str:
    return "x" * rows


@app.task(queue="eu")
async def stubborn(ctx: Context) -> str:
    while (await app.job(ctx.job_id).status()).state.name != "RUNNING":
        await asyncio.sleep(0.01)
    await app.job(ctx.job_id).cancel()
    return "done all the same"
"""

# What a newcomer writes first: the README's own form, with unittest.
TESTS = """
import unittest

from jobqueue import JobFailed
from tasks import app, charge


class Charging(unittest.TestCase):
    def test_what_is_submitted_has_run(self):
        with app.inline() as jobs:
            self.assertEqual(app.sync().submit(charge, 5).result(), 5)
            self.assertEqual([job.queue for job in jobs.of(charge)], ["once"])

    def test_a_failure_is_the_handlers_own(self):
        with app.inline() as jobs:
            with self.assertRaises(JobFailed) as failed:
                app.sync().submit(charge, -5).result()
            self.assertIsInstance(failed.exception.__cause__, ValueError)
            self.assertEqual(jobs[0].attempt, 1)

    def test_a_delayed_job_waits_for_its_time(self):
        q = app.sync()
        with app.inline() as jobs:
            q.run(charge.options(delay=86_400).submit(7))
            self.assertEqual(jobs[0].state.name, "PENDING")
            self.assertEqual(q.run(jobs.run_delayed()), 1)
            self.assertEqual(jobs[0].state.name, "DONE")


class Mistakes(unittest.TestCase):
    def test_a_queue_that_nobody_declared_is_refused(self):
        with app.inline():
            with self.assertRaisesRegex(Exception, "there is no queue 'nowhere'"):
                app.sync().run(charge.options(queue="nowhere").submit(1))

    def test_waiting_for_a_delayed_job_says_what_to_do(self):
        q = app.sync()
        with app.inline():
            job = q.run(charge.options(delay=60).submit(1))
            with self.assertRaisesRegex(Exception, "run_delayed"):
                q.job(job.id).result()
"""

OUTCOMES = """
import asyncio
import contextlib
import json
import sys

from tasks import app, charge, export, stubborn


async def outcomes():
    keyed = [charge.options(key="order-42", queue=queue) for queue in ("eu", "us", "eu")]
    jobs = [await one.submit(1) for one in keyed]
    jobs += [await charge.submit(-1), await export.submit(30 * 2**20), await stubborn.submit()]
    for job in jobs:
        with contextlib.suppress(Exception):
            await job.result()
    records = [await job.status() for job in jobs]
    print(json.dumps([[job.created for job in jobs],
                      [[r.state.name, r.reason, r.attempt, r.error[:40]] for r in records]]))


async def main():
    if sys.argv[1:] == ["inline"]:
        async with app.inline():
            await outcomes()
    else:
        async with app, app.worker(["eu", "us", "once"]):
            await outcomes()


asyncio.run(main())
"""


def test_users_test_their_tasks_inline(machine: Machine) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("test_tasks.py", TESTS)
    ran = machine.run("python", "-m", "unittest", "-v")
    assert ran.returncode == 0, ran.stderr
    assert "Ran 5 tests" in ran.stderr


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_what_was_tried_inline_is_so_elsewhere(machine: Machine, url: str) -> None:
    machine.write("tasks.py", TASKS)
    machine.write("outcomes.py", OUTCOMES)
    inline = machine.succeed("python", "outcomes.py", "inline")
    ran = machine.run("python", "outcomes.py", JOBS=url)  # its worker logs what failed
    assert ran.stdout == inline, ran.stderr
    created, ends = json.loads(inline)
    assert created == [True, True, False, True, True, True]
    assert [end[:3] for end in ends] == [
        *([["DONE", "SUCCEEDED", 1]] * 3),
        ["DEAD_LETTERED", "RETRIES_EXHAUSTED", 1],
        ["DEAD_LETTERED", "NOT_RETRYABLE", 1],
        ["DEAD_LETTERED", "CANCELLED", 1],
    ]
