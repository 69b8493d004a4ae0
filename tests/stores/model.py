"""A tiny model of a store: lists and loops, written without looking at any store.

It knows what a store promises, not how it keeps it. Everything is found by going through all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jobqueue.core.job import JobSpec, SubmitStatus
from jobqueue.core.lifecycle import State
from jobqueue.core.retry import RetryPolicy
from jobqueue.core.store import Rules
from jobqueue.core.unique import UniqueKey

P, A, R, D, F, X = State


@dataclass
class ModelJob:
    id: str
    seq: int
    queue: str
    type: str
    priority: int
    max_retries: int
    timeout: float | None
    run_at: float
    expires_at: float | None
    state: State = P
    version: int = 1
    attempt: int = 0
    retry_count: int = 0
    deaths: int = 0
    concurrency_key: str | None = None
    lease: int | None = None
    cancel_requested: bool = False
    timer: float | None = None  # retry, assignment timeout or watchdog
    old_leases: list[int] = field(default_factory=list)
    created_at: float = 0.0
    unique: UniqueKey | None = None
    told: dict[int, float] = field(default_factory=dict)  # lease -> progress

    @property
    def progress(self) -> float | None:
        """What is shown: the word of the attempt that runs."""
        return self.told.get(self.lease or 0) if self.state is R else None


class Model:
    """Two queues, ``r`` of them with a capacity."""

    def __init__(self, rules: Rules, policy: RetryPolicy, capacity: int) -> None:
        self.rules = rules
        self.policy = policy
        self.capacity = capacity
        self.now = 0.0
        self.jobs: list[ModelJob] = []
        self.paused: set[str] = set()
        self.max_running: dict[str, int] = {}  # by queue
        self.key_max_running: dict[str, int] = {}  # the same for each concurrency key
        self.keys: dict[tuple[str, str], tuple[str, tuple[bytes, str], float]] = {}

    def admits(self, spec: JobSpec) -> tuple[SubmitStatus, str]:
        known = self.keys.get((spec.queue, spec.key or ""))
        if spec.key and known and known[2] > self.now:
            same = known[1] == (spec.payload, spec.type)
            return (SubmitStatus.DUPLICATE if same else SubmitStatus.REFUSED), known[0]
        holder = self.in_the_way(spec)
        if holder is not None and spec.unique is not None and spec.unique.on_conflict != "replace":
            kept = spec.unique.on_conflict == "existing"
            return (SubmitStatus.EXISTING if kept else SubmitStatus.REFUSED), holder.id
        waiting = sum(
            job.queue == spec.queue and job.state is P and job is not holder for job in self.jobs
        )
        if spec.queue == "r" and waiting >= self.capacity:
            return SubmitStatus.REFUSED, ""
        return SubmitStatus.ACCEPTED, ""

    def in_the_way(self, spec: JobSpec) -> ModelJob | None:
        """The job that has the unique key of this spec, if it has it still."""
        said = spec.unique
        if said is None:
            return None
        equal = [
            job
            for job in self.jobs
            if job.unique is not None and (job.queue, job.unique.key) == (spec.queue, said.key)
        ]
        last = max(equal, key=lambda job: job.seq, default=None)
        if last is None:
            return None
        if said.period is not None:
            return last if self.now < last.created_at + said.period else None
        states = (P, F) if said.scope == "waiting" else (P, A, R, F)
        return last if last.state in states else None

    def supersede(self, spec: JobSpec) -> ModelJob | None:
        """An accepted spec takes the place of this job, if it says so."""
        holder = self.in_the_way(spec)
        if holder is not None:
            self._enter(holder, X)
        return holder

    def add(self, spec: JobSpec, job_id: str, seq: int) -> None:
        if spec.key:
            work = spec.payload, spec.type
            self.keys[spec.queue, spec.key] = job_id, work, self.now + self.rules.key_ttl
        self.jobs.append(
            ModelJob(
                id=job_id,
                seq=seq,
                queue=spec.queue,
                type=spec.type,
                priority=spec.priority,
                max_retries=spec.max_retries or 0,
                timeout=spec.timeout,
                run_at=self.now + (spec.delay or 0.0),
                expires_at=None if spec.ttl is None else self.now + spec.ttl,
                created_at=self.now,
                unique=spec.unique,
                concurrency_key=spec.concurrency_key,
            )
        )

    def claimable(
        self, queues: tuple[str, ...], types: frozenset[str] | None = None
    ) -> list[ModelJob]:
        """The jobs that a claim may take now."""
        return [
            job
            for job in self.jobs
            if job.state is P
            and job.queue in queues
            and job.queue not in self.paused
            and (types is None or job.type in types)
            and job.run_at <= self.now
            and (job.expires_at is None or job.expires_at > self.now)
        ]

    def claim(
        self, queues: tuple[str, ...], slots: int, types: frozenset[str] | None = None
    ) -> list[ModelJob]:
        ready = self.claimable(queues, types)
        taken: list[ModelJob] = []
        for job in sorted(ready, key=lambda job: (-job.priority, job.seq)):
            if len(taken) < slots and self._let_through(job):
                job.attempt += 1
                self._enter(job, A)
                job.timer = self.now + self.rules.assignment_timeout
                taken.append(job)
        return taken

    def _let_through(self, job: ModelJob) -> bool:
        """Whether the limits of the job's queue let it start."""
        held = [one for one in self.jobs if one.queue == job.queue and one.state in (A, R)]
        key = job.concurrency_key
        of_key = [one for one in held if one.concurrency_key == key]
        if len(held) >= self.max_running.get(job.queue, 1_000):
            return False
        return key is None or len(of_key) < self.key_max_running.get(job.queue, 1_000)

    def move(self, name: str, job: ModelJob, lease: int, *, retryable: bool) -> bool:
        """Make a move; False if it must be refused."""
        if name == "cancel":
            if job.state not in (P, A, F):
                return False
            self._enter(job, X)
        elif name == "retry by hand":
            if job.state not in (F, X):
                return False
            self._enter(job, P)
            job.retry_count = job.deaths = 0
            job.cancel_requested = False
            job.expires_at = None
            job.run_at = self.now
        elif job.lease is None or lease != job.lease:
            return False
        else:
            return self._report(name, job, retryable)
        return True

    def _report(self, name: str, job: ModelJob, retryable: bool) -> bool:
        if name in ("start", "hand back") and job.state is not A:
            return False
        if name == "hand back":
            self._enter(job, F)
            self._enter(job, P)
            return True
        if name != "lose" and job.state is A:
            self._enter(job, R)
            job.expires_at = None
        if name == "start":
            job.timer = job.timeout and self.now + job.timeout + self.rules.watchdog_grace
        elif name == "succeed" and not job.cancel_requested:
            self._enter(job, D)
        else:
            self._fail(job, lost=name == "lose", retryable=retryable)
        return True

    def _fail(self, job: ModelJob, *, lost: bool, retryable: bool = True) -> None:
        job.deaths += lost and self.rules.poison_after > 0
        poison = lost and job.state is R and job.deaths >= self.rules.poison_after
        self._enter(job, F)
        exhausted = job.retry_count >= job.max_retries
        if job.cancel_requested or not retryable or poison or exhausted:
            self._enter(job, X)
        else:
            job.timer = self.now + self.policy.delay(job.retry_count)

    def sweep(self) -> None:
        """Until nothing is due: a job may fail, wait out nothing and expire in one sweep."""
        while sum(self._due(job) for job in self.jobs):
            pass

    def _due(self, job: ModelJob) -> bool:
        if job.state is P and job.expires_at is not None and job.expires_at <= self.now:
            self._enter(job, X)
        elif job.timer is None or job.timer > self.now:
            return False
        elif job.state is F:
            self._enter(job, P)
            job.retry_count += 1
        else:
            self._fail(job, lost=False)
        return True

    def _enter(self, job: ModelJob, state: State) -> None:
        job.state = state
        job.version += 1
        job.timer = None
        if state not in (A, R):
            job.lease = None
