"""A model of the document's answers, and scripts of calls with their answers.

A script names jobs by their numbers, in the order of their submits. Answers have no times and no
runtimes, only whether there is one.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

from jobqueue.taskqueue import JobSpec, JobStatus

MAX_OUTPUT = 262_144
UNKNOWN_JOB = -1
NO_ID = -2

Step = tuple[Any, ...]
Answer = tuple[Any, ...]


@dataclass
class _Job:
    spec: JobSpec
    status: JobStatus = JobStatus.QUEUED
    cancel_requested: bool = False
    summary: str = ""
    output: bytes = b""

    @property
    def started(self) -> bool:
        return self.status is not JobStatus.QUEUED and self.summary != "canceled before it started"


class Reference:
    """The state behind the answers. ``runs``: a job has ended before the next call is made."""

    def __init__(self, *, runs: bool, running: int = 0) -> None:
        self._runs = runs
        self._keys: dict[str, int] = {}
        self.jobs = [_Job(JobSpec("hold"), JobStatus.RUNNING) for _ in range(running)]

    def submit(self, spec: JobSpec, key: str) -> Answer:
        if not spec.job_type:
            return ("INVALID_ARGUMENT",)
        if key in self._keys:
            number = self._keys[key]
            if self.jobs[number].spec != spec:
                return ("FAILED_PRECONDITION",)
            return ("OK", number, "QUEUED")
        number = len(self.jobs)
        self.jobs.append(_Job(spec))
        if key:
            self._keys[key] = number
        if self._runs:
            self._run(self.jobs[number])
        return ("OK", number, "QUEUED")

    def _run(self, job: _Job) -> None:
        size = job.spec.payload_size_bytes
        job.status = JobStatus.FAILED
        if job.spec.job_type == "fail":
            job.summary = "failed on purpose"
        elif size > MAX_OUTPUT:
            job.summary = f"OUTPUT_TOO_LARGE: {size} bytes of output, at most {MAX_OUTPUT} are kept"
        else:
            job.status, job.summary = JobStatus.DONE, f"{size} bytes of output"
            job.output = b"x" * size

    def status(self, number: int) -> Answer:
        if number < 0:
            return self._no_such_job(number)
        job = self.jobs[number]
        failure = job.summary if job.status is JobStatus.FAILED else ""
        times = (True, job.started, job.status.terminal)
        return ("OK", number, job.status.name, job.cancel_requested, times, failure)

    def result(self, number: int) -> Answer:
        if number < 0:
            return self._no_such_job(number)
        job = self.jobs[number]
        if not job.status.terminal:
            return ("OK", number, False, "JOB_STATUS_UNSPECIFIED", b"", "", "")
        checksum = hashlib.sha256(job.output).hexdigest()
        return ("OK", number, True, job.status.name, job.output, job.summary, checksum)

    def cancel(self, number: int) -> Answer:
        if number < 0:
            return self._no_such_job(number)
        job = self.jobs[number]
        ended = job.status.terminal
        if job.status is JobStatus.QUEUED:
            job.status, job.summary = JobStatus.CANCELED, "canceled before it started"
        elif not ended:
            job.cancel_requested = True
        return ("OK", number, True, job.status.name, ended)

    def list(self, statuses: tuple[JobStatus, ...]) -> Answer:
        shown = [
            (number, job.status.name, job.spec.job_type, job.cancel_requested)
            for number, job in enumerate(self.jobs)
            if not statuses or job.status in statuses
        ]
        return ("OK", shown)

    @staticmethod
    def _no_such_job(number: int) -> Answer:
        return ("NOT_FOUND" if number == UNKNOWN_JOB else "INVALID_ARGUMENT",)


def script(seed: int, calls: int, reference: Reference) -> list[tuple[Step, Answer]]:
    """Calls drawn at random, each with the answer that the reference gives."""
    draw = random.Random(seed)
    made: list[tuple[Step, Answer]] = []
    for _ in range(calls):
        step = _step(draw, len(reference.jobs))
        answer = getattr(reference, step[0])(*step[1:])
        made.append((step, answer))
    return made


def _step(draw: random.Random, jobs: int) -> Step:
    method = draw.choices(["submit", "status", "result", "cancel", "list"], [8, 4, 4, 5, 2])[0]
    if method == "submit":
        spec = JobSpec(
            draw.choice(["any", "any", "other", "fail", ""]),
            draw.choice([0, 5]),
            draw.choice([0, 1, 300, MAX_OUTPUT + 1]),
            draw.choice([{}, {"a": "1", "b": "2"}, {"b": "2", "a": "1"}]),
        )
        return ("submit", spec, draw.choice(["", "", "order-1", "order-2", "order-3"]))
    if method == "list":
        return ("list", tuple(draw.sample(list(JobStatus), draw.choice([0, 0, 1, 2, 3]))))
    if draw.random() < 0.2 or not jobs:
        return (method, draw.choice([UNKNOWN_JOB, NO_ID]))
    return (method, draw.randrange(jobs))
