"""Servers that answer as a test says, and remember what they were asked."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jobqueue import TaskQueueClient
from jobqueue.access.tls import Credentials
from jobqueue.core.errors import JobQueueError
from jobqueue.taskqueue.components.model import (
    Canceled,
    Envelope,
    JobRecord,
    Listing,
    Spec,
    Status,
    Submitted,
    Summary,
    SummaryPage,
)

NODES = [f"127.0.0.1:{6001 + n}" for n in range(6)]
JOB_ID = "f47ac10b-58cc-4372-a567-0e02b2c3d479"


@dataclass(frozen=True)
class Call:
    target: str
    method: str
    arguments: tuple[Any, ...]
    timeout: float


@dataclass
class Servers:
    """All that a client talks to. ``errors``: what the next calls to a target fail with."""

    calls: list[Call] = field(default_factory=list)
    errors: dict[str, list[JobQueueError]] = field(default_factory=lambda: defaultdict(list))
    dead: dict[str, JobQueueError] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)
    opened: list[tuple[str, Credentials | None]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    results: list[Envelope | None] = field(default_factory=list)

    def client(self, **given: Any) -> TaskQueueClient:
        if not {"gateway", "nodes"} & given.keys():
            given["nodes"] = NODES
        given.setdefault("rng", random.Random(1))
        return TaskQueueClient(**given, connect=self.connect, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def connect(self, target: str, credentials: Credentials | None) -> Server:
        self.opened.append((target, credentials))
        return Server(self, target)

    @property
    def asked(self) -> list[str]:
        return [call.target for call in self.calls]


@dataclass
class Server:
    servers: Servers
    target: str

    def _called(self, method: str, timeout: float, *arguments: Any) -> None:
        self.servers.calls.append(Call(self.target, method, arguments, timeout))
        if self.target in self.servers.dead:
            raise self.servers.dead[self.target]
        if waiting := self.servers.errors[self.target]:
            raise waiting.pop(0)

    async def submit(self, spec: Spec, key: str, *, timeout: float) -> Submitted:
        self._called("submit", timeout, spec, key)
        return Submitted(JOB_ID, 1)

    async def status(self, job_id: str, *, timeout: float) -> JobRecord:
        self._called("status", timeout, job_id)
        return JobRecord(Summary(job_id, Status.FAILED, "", 1, 2, 3), Spec(""), "broken")

    async def result(self, job_id: str, *, timeout: float) -> Envelope | None:
        self._called("result", timeout, job_id)
        return self.servers.results.pop(0) if self.servers.results else None

    async def cancel(self, job_id: str, reason: str, *, timeout: float) -> Canceled:
        self._called("cancel", timeout, job_id, reason)
        return Canceled(job_id, True, Status.CANCELED, already_terminal=False)

    async def list(self, listing: Listing, *, timeout: float) -> SummaryPage:
        self._called("list", timeout, listing)
        return SummaryPage((Summary(JOB_ID, Status.DONE, "noop", 1),), listing.offset + 1)

    async def close(self) -> None:
        self.servers.closed.append(self.target)


async def call_each(client: TaskQueueClient, job_id: str = JOB_ID) -> None:
    """Every method once, the submit with a key."""
    await client.submit_job(job_type="noop", client_request_id="key")
    for method in JOB_SCOPED:
        await getattr(client, method)(job_id)
    await client.list_jobs()


JOB_SCOPED: Sequence[str] = ("get_job_status", "get_job_result", "cancel_job")
