"""Generate the load of one run, and count its outcomes.

In a closed loop each caller sends its next request after the answer to its last request. In an open
loop requests start at planned times, whatever happens to earlier requests. The latency of a request
counts from its planned start, so that it also shows when a system stalls.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator

from hdrh.histogram import HdrHistogram

from jobqueue.bench.cell import Cell, Method
from jobqueue.bench.profile import Profile
from jobqueue.bench.records import TO_DONE, Counts, JobEnds, RunRecord, histogram
from jobqueue.bench.targets import Fate, LoadWork, SeenJob, Target
from jobqueue.core.errors import Code, JobQueueError

KEYS = 1_000  # the number of keys that skewed submits choose from
_GRACE = 10.0  # seconds after a load in which its open requests may still be answered
_RECENT = 1_000  # jobs that status, result and cancel choose from
_LATEST = 50  # jobs: when the latest have ended, nearly all jobs have
_READERS = 32
_GLANCE = 0.1
_MOST_OPEN = 4_096  # open requests in the open loop; more requests wait, and their latency grows
_IN_MEMORY = 1 << 22  # bytes of kept job ids; the rest is in a file
_SOFT = frozenset({Code.QUEUE_FULL, Code.RATE_LIMITED})


class Stopwatch:
    """Reads clocks and sleeps for a load. Tests replace it."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        return time.perf_counter()

    def wall(self) -> float:
        """Return the seconds since the epoch, like the times that servers report."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait for the given number of seconds."""
        await asyncio.sleep(seconds)


class LoadGenerator:
    """Runs the load of one cell, as a context manager.

    Call the public methods in the order of their definition.
    """

    def __init__(
        self,
        target: Target,
        cell: Cell,
        profile: Profile,
        *,
        seed: int,
        tag: str,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Create a generator. ``tag`` makes the idempotency keys of this run unique."""
        self._target = target
        self._cell = cell
        self._profile = profile
        self._tag = tag
        self._time = stopwatch or Stopwatch()
        self._draw = random.Random(seed)  # the same requests in the same order for all topologies
        self._methods = list(cell.mix)
        self._shares = list(itertools.accumulate(cell.mix.values()))
        self._weights = list(itertools.accumulate((n + 1) ** -cell.key_skew for n in range(KEYS)))
        self._next_key = itertools.count()
        self._by_key: dict[str, str] = {}  # the latest job id of each repeated key
        self._work = LoadWork(cell.work_ms, cell.payload_bytes)
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._latest: deque[str] = deque(maxlen=_LATEST)
        self._kept = _KeptJobs()
        self._opened_at = 0.0
        self._give_up = 0.0
        self._late = histogram()
        self._unread: Counter[str] = Counter()
        self._defects: list[Exception] = []
        self.counts: dict[str, Counts] = {}
        self.histograms: dict[str, HdrHistogram] = {}
        self.jobs = JobEnds()
        self._calls: dict[Method, Callable[[], Awaitable[str | None]]] = {
            Method.STATUS: self._status,
            Method.RESULT: lambda: target.result(self._some_job()),
            Method.CANCEL: lambda: target.cancel(self._some_job()),
            Method.LIST: self._list,
        }

    def __enter__(self) -> LoadGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    # -- the phases of a run ---------------------------------------------------------------

    async def warm_up(self) -> None:
        """Run the cell's load for the warm-up time, without counting it."""
        await self._stretch(self._profile.warm_up, counted=False)

    async def requests(self) -> None:
        """Run the cell's load for the measured time, and count every request."""
        self._opened_at = self._time.wall()
        for method in self._methods:
            self.counts[method], self.histograms[method] = Counts(), histogram()
        await self._stretch(self._profile.seconds, counted=True)

    async def latest_ended(self) -> None:
        """Wait up to the profile's ``drain`` seconds until the last ``_LATEST`` jobs have ended.

        ``account`` reads all other jobs after the measurement, so that reads are no extra load.
        """
        self._give_up = self._time.now() + self._profile.drain
        for job_id in self._latest:
            if self._time.now() >= self._give_up:
                break  # a call takes seconds while the part that knows the jobs is down
            await self._end_of(job_id)

    async def account(self) -> None:
        """Read how every submitted job ended, and cancel the jobs that are still open."""
        if self._cell.rate is not None:
            self.histograms[TO_DONE] = histogram()
        waiting = iter(self._kept)
        last = 0.0

        async def reader() -> None:
            nonlocal last
            for job_id, counted, began in waiting:
                seen = await self._end_of(job_id)
                if seen.fate is Fate.OPEN:
                    with contextlib.suppress(JobQueueError):  # the next run needs an empty queue
                        await self._target.cancel(job_id)
                if counted:
                    self._count_job(seen, began)
                if seen.fate is Fate.DONE and counted:
                    last = max(last, seen.ended)

        async with asyncio.TaskGroup() as readers:
            for _ in range(_READERS):
                readers.create_task(reader())
        if self.jobs.done and last > self._opened_at:
            self.jobs.a_second = self.jobs.done / (last - self._opened_at)

    async def job_after_job(self) -> None:
        """Measure whole jobs: each caller submits its next job when its last job has ended.

        Does nothing in an open loop. The end of a job is the server's time, so the caller's polling
        interval does not matter.
        """
        if self._cell.rate is not None or not self._profile.job_seconds:
            return
        counts = self.counts[TO_DONE] = Counts()
        taken = self.histograms[TO_DONE] = histogram()
        closes = self._time.now() + self._profile.job_seconds

        async def caller() -> None:
            while self._time.now() < closes:
                began = self._time.wall()
                try:
                    (job_id,) = await self._target.submit(self._work, [""])
                    seen = await self._target.end(job_id, self._profile.drain)
                except JobQueueError as error:
                    _count_error(counts, error)
                    await self._time.sleep(_GLANCE)
                else:
                    _count_end(counts, taken, seen, began)

        async with asyncio.TaskGroup() as callers:
            for _ in range(self._cell.callers):
                callers.create_task(caller())

    async def listings(self) -> None:
        """Send the profile's list requests one after another, apart from the other load.

        Listing is measured separately because its work differs between topologies.
        """
        if Method.LIST in self.counts or not self._profile.listings:
            return
        self.counts[Method.LIST], self.histograms[Method.LIST] = Counts(), histogram()
        for _ in range(self._profile.listings):
            await self._ask(Method.LIST, self._time.now(), counted=True)

    def fill(self, record: RunRecord) -> None:
        """Write the counts, latencies and notes of the run into ``record``."""
        record.counts = dict(self.counts)
        record.latencies = {name: one.encode().decode() for name, one in self.histograms.items()}
        record.jobs = self.jobs
        if self._cell.rate is not None:
            record.machine.late_ms = self._late.get_value_at_percentile(99) / 1000
        if self._unread:
            codes = ", ".join(f"{count} {code}" for code, count in self._unread.items())
            record.notes.append(f"status of jobs could not be read at first: {codes}")
        if self.jobs.open:
            record.notes.append(
                f"{self.jobs.open} jobs had not ended {self._profile.drain:g} s after the load;"
                " they were canceled"
            )

    # -- requests --------------------------------------------------------------------------

    async def _stretch(self, seconds: float, *, counted: bool) -> None:
        begun: set[asyncio.Task[None]] = set()
        try:
            if self._cell.rate is None:
                await self._closed(seconds, begun, counted=counted)
            else:
                await self._open(seconds, self._cell.rate, begun, counted=counted)
            if begun:
                await asyncio.wait(begun, timeout=_GRACE)
        finally:
            for one in begun:
                one.cancel()
            ended = await asyncio.gather(*begun, return_exceptions=True)
        defects = [one for one in ended if isinstance(one, Exception)]
        if defects := self._defects + defects:
            raise defects[0]

    async def _closed(
        self, seconds: float, begun: set[asyncio.Task[None]], *, counted: bool
    ) -> None:
        closes = self._time.now() + seconds

        async def caller() -> None:
            while (began := self._time.now()) < closes:
                await self._ask(self._next(), began, counted=counted)

        begun |= {asyncio.create_task(caller()) for _ in range(self._cell.callers)}
        await asyncio.wait(begun, timeout=seconds)

    async def _open(
        self, seconds: float, rate: float, begun: set[asyncio.Task[None]], *, counted: bool
    ) -> None:
        limit = asyncio.Semaphore(_MOST_OPEN)

        def ended(task: asyncio.Task[None]) -> None:
            limit.release()
            begun.discard(task)
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                self._defects.append(error)

        due = self._time.now()
        closes = due + seconds
        full = False
        while (due := due + self._draw.expovariate(rate)) < closes:
            method = self._next()
            await self._time.sleep(max(0.0, due - self._time.now()))
            full = full or not await _taken(limit, closes + _GRACE - self._time.now())
            if full:  # the request was due and could not start
                if counted:
                    self.counts[method].unfinished += 1
                continue
            if counted:
                _record(self._late, self._time.now() - due)
            task = asyncio.create_task(self._ask(method, due, counted=counted))
            begun.add(task)
            task.add_done_callback(ended)

    async def _ask(self, method: Method, began: float, *, counted: bool) -> None:
        """Send one request. If ``counted``, count its outcome and record its latency."""
        counts = self.counts[method] if counted else Counts()
        try:
            if method is Method.SUBMIT:
                soft = await self._submit(began, counted=counted)
            else:
                soft = await self._calls[method]()
        except JobQueueError as error:
            _count_error(counts, error)
            return
        except asyncio.CancelledError:
            counts.unfinished += 1
            raise
        if soft is None:
            counts.ok += 1
        else:
            counts.soft[soft] = counts.soft.get(soft, 0) + 1
        if counted:
            _record(self.histograms[method], self._time.now() - began)

    def _next(self) -> Method:
        (method,) = self._draw.choices(self._methods, cum_weights=self._shares)
        return method if self._recent or method is Method.LIST else Method.SUBMIT

    async def _submit(self, began: float, *, counted: bool) -> str | None:
        # Keys of the warm-up are not used again: their jobs exist already and are not counted.
        tag = self._tag if counted else f"{self._tag}-warm"
        keys = [self._key(tag) for _ in range(self._cell.batch)]
        began_at = self._time.wall() - (self._time.now() - began)
        for key, job_id in zip(keys, await self._target.submit(self._work, keys), strict=True):
            if not self._is_new(key, job_id):
                continue
            self._recent.append(job_id)
            self._kept.add(job_id, counted, began_at)
            if counted:
                self.jobs.submitted += 1
                self._latest.append(job_id)
        return None

    def _key(self, tag: str) -> str:
        if self._draw.random() >= self._cell.key_ratio:
            return ""
        if not self._cell.key_skew:
            return f"{tag}-{next(self._next_key)}"
        (number,) = self._draw.choices(range(KEYS), cum_weights=self._weights)
        return f"{tag}-{number}"

    def _is_new(self, key: str, job_id: str) -> bool:
        """Return True if the submit created the job.

        A submit with a repeated key returns the first job.
        """
        if not key or not self._cell.key_skew:
            return True
        known, self._by_key[key] = self._by_key.get(key), job_id
        return known != job_id

    async def _status(self) -> str | None:
        await self._target.status(self._some_job())
        return None

    async def _list(self) -> str | None:
        await self._target.list()
        return None

    def _some_job(self) -> str:
        return self._draw.choice(self._recent)

    # -- jobs ------------------------------------------------------------------------------

    async def _end_of(self, job_id: str) -> SeenJob:
        """Poll the job until it has ended or the ``drain`` time is over, and return its state."""
        while True:
            try:
                seen = await self._target.status(job_id)
            except JobQueueError as error:
                self._unread[error.code] += 1
                seen = SeenJob(Fate.OPEN)
            if seen.fate is not Fate.OPEN or self._time.now() >= self._give_up:
                return seen
            await self._time.sleep(_GLANCE)

    def _count_job(self, seen: SeenJob, began: float) -> None:
        jobs = self.jobs
        if seen.fate is Fate.DONE:
            jobs.done += 1
            if TO_DONE in self.histograms:
                _record(self.histograms[TO_DONE], seen.ended - began)
        elif seen.fate is Fate.FAILED:
            jobs.failed += 1
        elif seen.fate is Fate.CANCELED:
            jobs.canceled += 1
        else:
            jobs.open += 1


class _KeptJobs:
    """Keeps the jobs of a run in the order of their submits, with bounded memory."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+")  # noqa: SIM115

    def add(self, job_id: str, counted: bool, began: float) -> None:
        self._file.write(f"{job_id} {counted:d} {began:.6f}\n")

    def __iter__(self) -> Iterator[tuple[str, bool, float]]:
        self._file.seek(0)
        for line in self._file:
            job_id, counted, began = line.split()
            yield job_id, counted == "1", float(began)

    def close(self) -> None:
        self._file.close()


async def _taken(limit: asyncio.Semaphore, patience: float) -> bool:
    """Acquire the semaphore. Returns False if that takes longer than ``patience`` seconds."""
    if limit.locked():
        try:
            async with asyncio.timeout(max(0.0, patience)):
                await limit.acquire()
        except TimeoutError:
            return False
        return True
    return await limit.acquire()


def _record(taken: HdrHistogram, seconds: float) -> None:
    # A server rounds times to whole milliseconds, so an end may seem to precede its submit.
    taken.record_value(max(1, int(seconds * 1e6)))


def _count_error(counts: Counts, error: JobQueueError) -> None:
    into = counts.soft if error.code in _SOFT else counts.errors
    into[error.code.value] = into.get(error.code.value, 0) + 1


def _count_end(counts: Counts, taken: HdrHistogram, seen: SeenJob, began: float) -> None:
    if seen.fate is Fate.DONE:
        counts.ok += 1
        _record(taken, seen.ended - began)
    elif seen.fate is Fate.OPEN:
        counts.unfinished += 1
    else:
        word = seen.fate.upper()
        counts.soft[word] = counts.soft.get(word, 0) + 1
