"""The parts wired together with failpoints between them, and what must hold in the end."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import NotFound
from jobqueue.taskqueue.components import journal
from jobqueue.taskqueue.components.coordinator import Coordinator
from jobqueue.taskqueue.components.gateway import Gateway
from jobqueue.taskqueue.components.model import (
    MAX_PAGE_SIZE,
    RETRY_AFTER_MS,
    Envelope,
    Listing,
    Report,
    Spec,
    Status,
    Summary,
    Work,
    WorkOutcome,
)
from jobqueue.taskqueue.components.protocols import Coordination, new_request_id
from jobqueue.taskqueue.components.reconciler import Reconciler
from jobqueue.taskqueue.components.state import MAX_QUEUED, JobLedger, ReadyQueue, ResultShelf
from tests.taskqueue.protocols.faulty import Failpoints

SPEC = Spec("simulate", 5, 3, {"team": "a"})
WORKER = "worker-1"


class Lines(logging.Handler):
    """The log of the parts."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, event: str, job_id: str | None = None) -> list[logging.LogRecord]:
        """Lines of this event, of this job."""
        return [
            record
            for record in self.records
            if getattr(record, "event", "") == event
            and (job_id is None or getattr(record, "job_id", "") == job_id)
        ]

    def anomalies(self, job_id: str | None = None) -> list[logging.LogRecord]:
        return self.of(journal.ANOMALY, job_id)


@dataclass
class Rig:
    """Owners, the two that carry out the protocols, and failpoints on every way between."""

    lines: Lines
    max_queued: int = MAX_QUEUED
    clock: ManualClock = field(default_factory=ManualClock)
    seconds: float = 0.0
    accepted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ledger = JobLedger(clock=self.clock)
        self.queue = ReadyQueue(max_queued=self.max_queued)
        self.shelf = ResultShelf()
        self.monotonic: Callable[[], float] = lambda: self.seconds
        self.gateway_calls = Failpoints()
        self.coordinator_calls = Failpoints()
        self.worker_calls = Failpoints()
        self.new_gateway()
        self.new_coordinator()

    def new_gateway(self) -> None:
        around = self.gateway_calls.around
        self.gateway = Gateway(
            around(self.ledger, "jobs"),
            around(self.queue, "queue"),
            around(self.shelf, "results"),
            clock=self.clock,
        )
        self.reconciler = Reconciler(
            around(self.ledger, "jobs"),
            around(self.queue, "queue"),
            self.gateway.settle,
            interval_ms=1_000,
        )

    def new_coordinator(self) -> None:
        around = self.coordinator_calls.around
        self.coordinator = Coordinator(
            around(self.ledger, "jobs"),
            around(self.queue, "queue"),
            around(self.shelf, "results"),
            clock=self.clock,
            monotonic=self._time,
        )
        self.coordination: Coordination = self.worker_calls.around(self.coordinator, "coordination")

    def _time(self) -> float:
        return self.monotonic()

    # -- what clients and workers do -----------------------------------------------------------

    async def submit(self, spec: Spec = SPEC, key: str = "") -> str:
        """The id of an accepted job."""
        job_id = (await self.gateway.submit(spec, key)).job_id
        self.accepted.add(job_id)
        return job_id

    async def status(self, job_id: str) -> Status:
        return (await self.ledger.get(job_id)).summary.status

    async def exists(self, job_id: str) -> bool:
        try:
            await self.ledger.get(job_id)
        except NotFound:
            return False
        return True

    async def beat(self, worker_id: str = WORKER) -> None:
        await self.coordinator.heartbeat(worker_id, 0, 1)

    async def fetch(self, worker_id: str = WORKER, request_id: str = "") -> Work:
        await self.beat(worker_id)
        return await self.coordination.fetch(worker_id, request_id=request_id or new_request_id())

    async def report(
        self,
        job_id: str,
        outcome: WorkOutcome = WorkOutcome.SUCCEEDED,
        *,
        worker_id: str = WORKER,
        request_id: str = "",
        output: bytes = b"out",
    ) -> bool:
        reason = "boom" if outcome is WorkOutcome.FAILED else ""
        output = b"" if reason else output
        return await self.coordination.report(
            Report(worker_id, job_id, outcome, 7, reason, "made", output),
            request_id=request_id or new_request_id(),
        )

    async def running(self, key: str = "") -> str:
        """A job that a worker has."""
        job_id = await self.submit(key=key)
        work = await self.fetch()
        assert work.job_id == job_id
        return job_id

    async def work_off(self) -> list[str]:
        """Fetch and finish until there is nothing; the ids in the order of their execution."""
        executed = []
        while True:
            work = await self.fetch()
            if work.job_id:
                executed.append(work.job_id)
                await self.report(work.job_id)
            elif work.retry_after_ms == RETRY_AFTER_MS:
                return executed

    async def reconcile(self) -> None:
        """Run two rounds: a missing job is a suspect in the first, and settled in the second."""
        await self.reconciler.round()
        await self.reconciler.round()

    # -- what must hold ------------------------------------------------------------------------

    async def jobs(self) -> list[Summary]:
        found: list[Summary] = []
        offset: int | None = 0
        while offset is not None:
            page = await self.ledger.list(Listing(offset=offset, limit=MAX_PAGE_SIZE))
            found += page.jobs
            offset = page.next_offset
        return found

    async def check(self, *, lenient: bool = False) -> None:
        """At rest: nothing accepted is lost, nothing ran or ended twice, nothing is stranded.

        ``lenient``: an accepted job may be stranded, if an anomaly names it.
        """
        jobs = {summary.job_id: summary for summary in await self.jobs()}
        assert self.accepted <= set(jobs), "an accepted job is gone"
        assert len(self.queue) == 0, "not at rest"
        named = self.named_by_anomalies()
        for job_id, summary in jobs.items():
            if summary.status.terminal:
                envelope = await self.shelf.get(job_id)
                assert isinstance(envelope, Envelope), f"{job_id} has ended without an envelope"
                assert envelope.status is summary.status
            else:
                assert job_id in named, f"{job_id} is stranded, and nobody says so: {summary}"
                assert lenient or job_id not in self.accepted, f"{job_id} never ended: {summary}"
        self.check_transitions(jobs)

    def named_by_anomalies(self) -> set[str]:
        """Job ids; a create that was never answered is named by its request."""
        named = {line.__dict__.get("job_id", "") for line in self.lines.anomalies()}
        requests = {line.__dict__.get("request_id") for line in self.lines.anomalies()}
        for call in self.gateway_calls.of("jobs.create"):
            if call.request_id in requests:
                named |= {answer.job_id for answer in call.answers}
        return named

    def check_transitions(self, jobs: dict[str, Summary]) -> None:
        """Each job started at most once, and its first terminal status is the one it has.

        A request that was asked again after its answer was lost counts once.
        """
        started: defaultdict[str, set[str | None]] = defaultdict(set)
        ended: defaultdict[str, dict[str | None, Status]] = defaultdict(dict)
        for call in (*self.gateway_calls.calls, *self.coordinator_calls.calls):
            if call.point.startswith("jobs.transition") and any(a.applied for a in call.answers):
                job_id, _, to = call.arguments
                if to is Status.RUNNING:
                    started[job_id].add(call.request_id)
                else:
                    ended[job_id][call.request_id] = to
        for job_id, requests in started.items():
            assert len(requests) == 1, f"{job_id} was started {len(requests)} times"
        for job_id, ends in ended.items():
            assert len(ends) == 1, f"{job_id} ended as {ends}"
            assert jobs[job_id].status in ends.values()
