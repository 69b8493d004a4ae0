"""Pages of jobs, bounded in number and in bytes.

A standard gRPC client takes 4 MiB in one message, and a server must not read a thousand large
payloads to show twenty. Jobs are read in growing portions, and a page ends before it grows large.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from jobqueue.core.job import Job, Page
from jobqueue.core.store import JobFilter
from jobqueue.engine.admission import write_page_token

PAGE_BYTES = 2 * 1024 * 1024
_FIRST_PORTION = 32
_MOST_GROWTH = 4
_FIELDS = 256  # bytes of a job beside its texts and contents, about


async def read_page(
    read: Callable[[JobFilter], Awaitable[list[Job]]], wanted: JobFilter, limit: int
) -> Page:
    """The next jobs: at most ``limit``, and about PAGE_BYTES, but always one if there is one."""
    jobs: list[Job] = []
    size = 0
    portion = _FIRST_PORTION
    before = wanted.before_seq
    while True:
        # One more than the page takes: it says whether there is another page.
        count = min(portion, limit + 1 - len(jobs))
        found = await read(replace(wanted, before_seq=before, limit=count))
        for job in found:
            size += job_bytes(job)
            if len(jobs) == limit or (jobs and size > PAGE_BYTES):
                return Page(jobs, write_page_token(jobs[-1].seq))
            jobs.append(job)
        if len(found) < count:
            return Page(jobs)
        before = found[-1].seq
        mean = size // len(jobs)
        portion = max(1, min(_MOST_GROWTH * portion, (PAGE_BYTES - size) // mean + 1))


def job_bytes(job: Job) -> int:
    """About what a job takes in a message."""
    said = "" if job.progress is None else job.progress.text
    texts = (job.error, job.key or "", job.queue, job.type, said, *job.labels, *job.labels.values())
    contents = len(job.payload) + len(job.result or b"")
    return _FIELDS + contents + sum(map(_encoded, texts))


def _encoded(text: str) -> int:
    """A letter takes up to four bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
