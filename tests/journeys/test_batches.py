"""Batches as their page says, by the installed package."""

from __future__ import annotations

import json

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks

PAGE = "docs/batches.md"

# What the index of a shop does: orders come one by one, from anywhere, and are written together.
ORDERS = """
import os

from jobqueue import Context, JobQueue

app = JobQueue(os.environ["JOBS"])


@app.task(queue="orders", batch=50, batch_wait=0.5)
def store(ids: list[int], amounts: list[float], contexts: list[Context]) -> list[str | Exception]:
    with open("batches.txt", "a") as file:
        print(len(ids), file=file)
    return [
        f"{id}: {amount:.2f} at attempt {ctx.attempt}" if amount > 0 else ValueError("no amount")
        for id, amount, ctx in zip(ids, amounts, contexts)
    ]


if __name__ == "__main__":
    q = app.sync()
    jobs = q.submit_many(store.options(max_retries=0), [(n, n % 10) for n in range(200)])
    failed = 0
    for job in jobs:
        try:
            job.result(timeout=60)
        except Exception:
            failed += 1
    print(len(jobs), failed)
"""


def test_the_program_of_the_page_works(machine: Machine) -> None:
    (text,) = blocks(PAGE, "python")
    machine.write("indexing.py", text)
    ran = machine.run("python", "indexing.py")  # the worker logs the failure
    assert ran.returncode == 0, ran.stderr
    (console,) = blocks(PAGE, "console")
    wanted = console.split("\n", 1)[1]
    printed = [line for line in ran.stdout.splitlines() if not line.startswith("  ")]
    first, _, *rest = wanted.splitlines()
    assert printed[0] == first
    assert printed[1].startswith("ValueError: empty")
    assert printed[-2:] == rest


def test_jobs_of_many_callers_are_written_together_by_a_worker(machine: Machine) -> None:
    server = machine.start("jq-server", "--http-port", "0", "--grpc-port", "0")
    ready = json.loads(server.line_with('"message": "ready'))
    url = f"grpc://{ready['grpc']}"
    machine.write("orders.py", ORDERS)
    app = ("--app", "orders:app")

    # A worker with too few slots says what to do.
    small = machine.run("jq-worker", *app, "--concurrency", "10", JOBS=url)
    assert small.returncode == 2, small.stderr
    assert "task 'store' runs batches of 50 jobs, each of which takes a slot" in small.stdout
    assert "set its concurrency to 50 or more" in small.stdout

    worker = machine.start("jq-worker", *app, "--concurrency", "100", JOBS=url)
    worker.line_with("ready: taking jobs")
    assert machine.succeed("python", "orders.py", JOBS=url) == "200 20\n"
    sizes = [int(line) for line in (machine.folder / "batches.txt").read_text().split()]
    assert sum(sizes) == 200
    assert len(sizes) < 100  # 4 full ones, and some while the first jobs came
    assert max(sizes) <= 50

    # A single job, submitted from elsewhere, has the arguments of one job.
    ctl = ("jq-ctl", "--server", ready["grpc"])
    submit = ("job", "submit", "orders", '{"ids": 7, "amounts": 2.5}', "--type", "store", "--wait")
    assert "7: 2.50 at attempt 1" in machine.succeed(*ctl, *submit)
    assert worker.stop() == server.stop() == 0


PROCESS = """
from jobqueue import JobQueue

app = JobQueue("memory://")


@app.task(batch=10, executor="process")
def crunch(ns: list[int]) -> list[int]:
    return ns
"""


def test_a_newcomers_mistakes_are_explained(machine: Machine) -> None:
    machine.write("mistake.py", PROCESS)
    ran = machine.run("python", "mistake.py")
    assert ran.returncode == 1
    assert "batch: is not allowed together with executor='process'" in ran.stderr
    single = PROCESS.replace(', executor="process"', "").replace("list[int])", "int)")
    machine.write("mistake.py", single)
    ran = machine.run("python", "mistake.py")
    assert "parameter 'ns' must be a list" in ran.stderr
    assert "expected `list[int]`, got `int`" in ran.stderr
