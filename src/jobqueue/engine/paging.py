"""Read pages of jobs that are limited in their number of jobs and in bytes.

A standard gRPC client accepts messages of at most 4 MiB, and a server must not read a thousand
large payloads to show twenty. So jobs are read in growing portions until a page has enough bytes.

Other accounts have their turns between two portions, and an account reads one portion at a time.
The reason: stores have few connections for reads, and decoding many jobs delays all other work.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from weakref import WeakValueDictionary

from jobqueue.core.job import Job, Page, TimeQuery
from jobqueue.core.store import JobFilter, JobReads
from jobqueue.core.waiting import TURN, account, turn
from jobqueue.engine.admission import write_page_token

PAGE_BYTES = 2 * 1024 * 1024
_FIRST_PORTION = 32
_MOST_GROWTH = 4
_READ = 2  # how much each job that is read and measured counts in a turn
_MOST = TURN // _READ  # jobs in one portion
_FIELDS = 256  # about the bytes of a job without its texts and contents


class AccountLines:
    """Holds a lock for each account, so that the account has one read of a kind at a time."""

    def __init__(self) -> None:
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def line(self) -> AbstractAsyncContextManager[None]:
        """Return the lock for the reads of the current account.

        Reads of the process itself belong to no account and need no lock.
        """
        whose = account.get()
        if not whose:
            return nullcontext()
        line = self._lines.get(whose)
        if line is None:
            line = self._lines[whose] = asyncio.Lock()
        return line


class Pages(AccountLines):
    def __init__(self, reads: JobReads) -> None:
        super().__init__()
        self._reads = reads

    async def newest(self, wanted: JobFilter, limit: int) -> Page:
        """Return the next page of jobs, newest first.

        A page has at most ``limit`` jobs and about PAGE_BYTES, but at least one job if one matches.
        """
        jobs: list[Job] = []
        size = 0
        portion = _FIRST_PORTION
        before = wanted.before_seq
        while True:
            # Read one job more than fits into the page, to know if there is another page.
            count = min(portion, limit + 1 - len(jobs))
            async with self.line():
                await turn(count * _READ)
                found = await self._reads.list_jobs(replace(wanted, before_seq=before, limit=count))
                for job in found:
                    size += job_bytes(job)
                    if len(jobs) == limit or (jobs and size > PAGE_BYTES):
                        return Page(jobs, write_page_token(jobs[-1].seq))
                    jobs.append(job)
            if len(found) < count:
                return Page(jobs)
            before = found[-1].seq
            mean = size // len(jobs)
            fitting = (PAGE_BYTES - size) // mean + 1
            portion = max(1, min(_MOST_GROWTH * portion, fitting, _MOST))

    async def by_time(self, wanted: TimeQuery) -> list[Job]:
        async with self.line():
            await turn(min(wanted.limit, _MOST) * _READ)
            return await self._reads.list_by_time(wanted)


def job_bytes(job: Job) -> int:
    """Return the approximate size of a job in a message, in bytes."""
    said = "" if job.progress is None else job.progress.text
    texts = (job.error, job.key or "", job.queue, job.type, said, *job.labels, *job.labels.values())
    more = (str(value) for value in job.spec.more().values() if value)
    contents = len(job.payload) + len(job.result or b"")
    return _FIELDS + contents + sum(map(_encoded, (*texts, *more)))


def _encoded(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
