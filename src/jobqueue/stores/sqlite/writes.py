"""Submit, claim and change jobs inside one transaction of the writer's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from jobqueue.core.decide import (
    ASSIGNED,
    SUBMITTED,
    Entry,
    Live,
    QueuePolicy,
    accept,
    assign,
    assignment,
    begin,
    events_of,
    full,
    move,
    repeated,
    to_supersede,
    unique_conflict,
)
from jobqueue.core.errors import no_such_queue
from jobqueue.core.ids import id_from_bytes, id_to_bytes
from jobqueue.core.job import (
    Assignment,
    JobSpec,
    NewJob,
    Outcome,
    Refusal,
    SubmitResult,
    Transition,
)
from jobqueue.core.lifecycle import HELD, TERMINAL, Reason, State
from jobqueue.core.limits import Limits
from jobqueue.core.queue import MAX_PRIORITY, QueueSettings, by_weight, merge_queues
from jobqueue.core.retry import policy_of
from jobqueue.core.store import ALL_QUEUES, Claim, Claimed, Rules
from jobqueue.core.unique import Holder, UniqueKey
from jobqueue.stores.queue_rows import read_limits, read_weights
from jobqueue.stores.rows import REASONS, STATES, read_spec, write_labels, write_more
from jobqueue.stores.sqlite.limiting import Cursors, LimitedClaim
from jobqueue.stores.sqlite.statements import (
    SQL,
    Row,
    read_marked,
    read_merged,
    write_marked,
    write_rows,
)

_FEW_TYPES = 8
# Dictionaries, because reading the value of an enumeration's member takes longer.
_NUMBERS: dict[State | None, int | None] = {None: None, **{state: int(state) for state in State}}
_WORDS = {reason: reason.value for reason in Reason}


class JobWriter:
    """Changes jobs in one transaction, all at the same time ``now``.

    ``finish`` must be called last. It writes the figures of the queues.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        now: float,
        rules: Rules,
        cursors: Cursors | None = None,
    ) -> None:
        self._connection = connection
        self._now = now
        self._rules = rules
        self._cursors = {} if cursors is None else cursors
        # By queue, what ``count`` adds to its columns: jobs in each state; attempts that ended.
        self._depth: dict[int, list[int]] = {}
        self._ended: dict[int, list[float]] = {}
        self.superseded: list[Outcome] = []  # of jobs whose place a submitted job has taken
        self.freed: set[str] = set()  # queues with a limit of held jobs in which a lease ended

    def enter(self, queue: int, before: State | None, after: State | None) -> None:
        """Count a job that left the state ``before`` and entered the state ``after``.

        None stands for a new job as ``before`` and for a removed job as ``after``.
        """
        depth = self._depth.setdefault(queue, [0] * len(State))
        if before is not None:
            depth[before - 1] -= 1
        if after is not None:
            depth[after - 1] += 1

    def finish(self) -> None:
        """Write all counted changes to the figures of the queues."""
        for queue in self._depth.keys() | self._ended.keys():
            depth = self._depth.get(queue) or [0] * len(State)
            ended = self._ended.get(queue) or [0, 0, 0.0, 0]
            self._connection.execute(SQL["count"], (*depth, *ended, queue))

    # -- (new) -> PENDING ------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[SubmitResult]:
        """Accept or refuse each job, and return the results in the same order."""
        names = list({job.spec.queue for job in jobs})
        queues: dict[str, tuple[int, QueueSettings]] = {}
        waiting: dict[str, int] = {}
        for row in read_marked(self._connection, "queues_by_name", names):
            name, queue, max_retries, ttl, timeout, capacity, pending = row
            queues[name] = (
                queue,
                QueueSettings(max_retries=max_retries, ttl=ttl, timeout=timeout, capacity=capacity),
            )
            waiting[name] = pending
        last = self._connection.execute(SQL["last_seq"]).fetchone()
        seq = last[0] if last else 0
        results: list[SubmitResult] = []
        new_jobs = _NewJobs(self._connection)
        for job in jobs:
            spec = job.spec
            if spec.queue not in queues:
                results.append(SubmitResult.refused(no_such_queue(spec.queue)))
                continue
            queue, settings = queues[spec.queue]
            known = self._known(queue, spec)
            if known is not None:
                results.append(known)
                continue
            old: Holder | None = None
            if spec.unique is not None:
                new_jobs.write()  # the holder of the key may be one of them
                old = self._holder(queue, spec.unique)
                if conflict := unique_conflict(spec.unique, old, self._now):
                    results.append(conflict)
                    continue
                if not to_supersede(spec.unique, old, self._now):
                    old = None
            gives_place = old is not None and old.state is State.PENDING
            if 0 < settings.capacity <= waiting[spec.queue] and not gives_place:
                results.append(full(spec.queue, settings.capacity))
                continue
            if old is not None:
                self.superseded += self.apply([Transition.superseded(old.seq, job.id)])
            waiting[spec.queue] += 0 if gives_place else 1
            seq += 1
            raw_id = id_to_bytes(job.id)
            new = accept(spec, settings, self._now)
            made = begin(new.spec, new.expires_at, new.due, seq, Live)
            entries = events_of(made, job.id, spec.queue, None, SUBMITTED, self._now)
            new_jobs.records.append(record_row(seq, raw_id, queue, new.spec, self._now))
            row = new_row(made, queue, new.spec, new.ready, self._now)
            if spec.concurrency_key is None:
                new_jobs.live.append(row)
            else:
                new_jobs.keyed.append((*row, spec.concurrency_key))
            new_jobs.events += event_rows(seq, entries)
            self.enter(queue, None, State.PENDING)
            if spec.unique is not None:
                self._connection.execute(SQL["put_unique_key"], (queue, spec.unique.stored, seq))
            if spec.stored_key is not None:
                expiry = self._now + self._rules.key_ttl
                row = (queue, spec.stored_key, seq, raw_id, spec.fingerprint(), expiry)
                self._connection.execute(SQL["put_key"], row)
            results.append(SubmitResult.accepted(job.id))
        new_jobs.write()
        return results

    def _holder(self, queue: int, unique: UniqueKey) -> Holder | None:
        """Return the holder of a unique key, or None if no job has the key."""
        row = self._connection.execute(SQL["unique_holder"], (queue, unique.stored)).fetchone()
        if row is None:
            return None
        raw_id, seq, created_at, state = row
        return Holder(id_from_bytes(raw_id), seq, created_at, STATES[state])

    def _known(self, queue: int, spec: JobSpec) -> SubmitResult | None:
        for key in (spec.stored_key, spec.shared_key):
            if key is not None:
                values = (queue, key, self._now)
                found = self._connection.execute(SQL["find_key"], values).fetchone()
                if found is not None:
                    return repeated(spec, id_from_bytes(found[0]), found[1])
        return None

    # -- PENDING -> ASSIGNED ---------------------------------------------------------------

    def claim(self, claims: Sequence[Claim]) -> list[Assignment]:
        """Assign jobs to the slots of claims: by priority, then first in, first out."""
        if not claims:
            return []
        found = self._connection.execute(SQL["claimable_queues"], (self._now,))
        claimable = [_ClaimableQueue(self._connection, self._now, *row) for row in found]
        names = {queue.id: queue.name for queue in claimable}
        limited: dict[int, LimitedClaim] = {}
        assigned: list[Assignment] = []
        for wanted in claims:
            everything, limit = ALL_QUEUES in wanted.queues, len(wanted.slots)
            laid: list[tuple[bool, Sequence[Row]]] = []
            for queue in claimable:
                if (everything or queue.name in wanted.queues) and queue.name not in wanted.without:
                    shares, limits = queue.weights is not None, queue.limits
                    if limits is None:
                        jobs = queue.next_jobs(wanted.types, limit)
                    else:
                        claim = self._limited(queue, limits, limited)
                        jobs = claim.next_jobs(wanted.types, limit, queue.next_jobs)
                        shares = shares or limits.shares is not None
                    laid.append((shares, jobs))
            rows = merge_queues(laid, limit)
            for number, claim in limited.items():
                claim.took(row[1] for row in rows if row[2] == number)
            updates: list[Row] = []
            events: list[Row] = []
            for row, worker in zip(rows, wanted.slots, strict=False):
                (_, seq, queue, version, attempt, retry_count, max_retries, timeout,
                 expires_at, raw_id, kind, payload, labels, more, priority, created_at,
                 deaths) = row  # fmt: skip
                job_id, name = id_from_bytes(raw_id), names[queue]
                live = Live(
                    seq, State.PENDING, version, attempt, retry_count, max_retries, None, None,
                    False, deaths, timeout, None, expires_at, None, None,
                )  # fmt: skip
                assign(live, worker, self._now, self._rules)
                updates.append((seq, live.lease, worker, live.due, self._now))
                steps = (State.PENDING, ASSIGNED, self._now, "", worker)
                events += event_rows(seq, events_of(live, job_id, name, *steps))
                spec = read_spec(
                    name, kind, payload, priority, max_retries, None, timeout, None, None, labels,
                    more,
                )  # fmt: skip
                assigned.append(assignment(live, job_id, spec, created_at, self._now))
                self.enter(queue, State.PENDING, State.ASSIGNED)
            write_rows(self._connection, "assign", updates)
            write_rows(self._connection, "insert_events", events)
        if not limited:
            return assigned
        opens = {names[number]: claim.finish() for number, claim in limited.items()}
        held_back = {name: opens_in for name, opens_in in opens.items() if opens_in is not None}
        return Claimed(assigned, held_back) if held_back else assigned

    def _limited(
        self, queue: _ClaimableQueue, limits: Limits, limited: dict[int, LimitedClaim]
    ) -> LimitedClaim:
        """Return what the limits of a queue still allow in this transaction."""
        found = limited.get(queue.id)
        if found is None:
            depth = self._depth.get(queue.id) or [0] * len(State)
            held = depth[State.ASSIGNED - 1] + depth[State.RUNNING - 1]
            found = limited[queue.id] = LimitedClaim(
                self._connection, self._now, queue.id, limits, queue.weights, held, self._cursors,
                keyed=queue.keyed,
            )  # fmt: skip
        return found

    # -- every other move ------------------------------------------------------------------

    def apply(self, transitions: Sequence[Transition]) -> list[Outcome]:
        """Make transitions, each checked and fenced, and return the outcomes in the same order."""
        queues: dict[int, QueuePolicy] = {}
        counted: set[int] = set()  # queues with a limit of held jobs
        for number, name, deleted, more, *retry in self._connection.execute(SQL["queue_policies"]):
            queues[number] = QueuePolicy(name, bool(deleted), policy_of(*retry))
            if more and (limits := read_limits(more)) is not None and limits.counts_held:
                counted.add(number)
        jobs = self._read_jobs([asked.seq for asked in transitions])
        outcomes: list[Outcome] = []
        events: list[Row] = []
        changed: dict[int, _MovingJob] = {}
        for asked in transitions:
            job = jobs.get(asked.seq)
            if job is None:
                outcomes.append(Outcome(Refusal.NO_SUCH_JOB))
                continue
            live = job.live
            before = live.state
            outcome, decision, made = move(
                live, job.job_id, queues[job.queue], asked, self._now, self._rules
            )
            outcomes.append(outcome)
            if decision is None:
                continue
            changed[live.seq] = job
            if job.queue in counted and before in HELD and live.state not in HELD:
                self.freed.add(queues[job.queue].name)
            job.revived = job.revived or before is State.DEAD_LETTERED
            self.enter(job.queue, before, live.state)
            if decision.ran_for is not None:
                figures = self._ended.setdefault(job.queue, [0, 0, 0.0, 0])
                figures[0 if live.state is State.DONE else 1] += 1
                figures[2] += decision.ran_for
                figures[3] += 1
            events += event_rows(live.seq, made)
        self._write_moved(changed.values())
        write_rows(self._connection, "insert_events", events)
        return outcomes

    def _read_jobs(self, seqs: Sequence[int]) -> dict[int, _MovingJob]:
        rows = {row[0]: _MovingJob(row) for row in read_marked(self._connection, "lock_live", seqs)}
        missing = [seq for seq in seqs if seq not in rows]
        for row in read_marked(self._connection, "lock_ended", missing):
            rows[row[0]] = _MovingJob(row)
        return rows

    def _write_moved(self, changed: Iterable[_MovingJob]) -> None:
        now, execute = self._now, self._connection.execute
        started: list[Row] = []
        ended: list[Row] = []
        for job in changed:
            live = job.live
            if job.revived:
                values = (int(live.state), live.version, now, live.reason.value, live.seq)
                execute(SQL["revive_live"], values)
                execute(SQL["revive_record"], (live.seq,))
            if live.state in TERMINAL:
                ended.append(end_row(live))
            elif live.state is State.RUNNING and job.before is State.ASSIGNED:
                started.append((live.seq, live.version, live.started_at, live.due, now))
            elif not job.revived or live.state is not State.PENDING:
                execute(SQL["update_live"], live_row(live, live.state is State.PENDING, now))
        write_rows(self._connection, "start_live", started)
        write_marked(self._connection, "end_live", [row[0] for row in ended])
        write_rows(self._connection, "end_records", ended)


class _NewJobs:
    """Collects the rows of accepted jobs, to write many at once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.records: list[Row] = []
        self.live: list[Row] = []
        self.keyed: list[Row] = []  # live rows of jobs with concurrency keys
        self.events: list[Row] = []

    def write(self) -> None:
        write_rows(self._connection, "insert_records", self.records)
        write_rows(self._connection, "insert_live", self.live)
        write_rows(self._connection, "insert_keyed", self.keyed)
        write_rows(self._connection, "insert_events", self.events)
        self.records, self.live, self.keyed, self.events = [], [], [], []


class _ClaimableQueue:
    """Finds the next jobs of a queue for claims, and caches the types of its claimable jobs."""

    __slots__ = ("_connection", "_now", "_types", "id", "keyed", "limits", "name", "weights")

    def __init__(
        self,
        connection: sqlite3.Connection,
        now: float,
        queue: int,
        name: str,
        weights: str | None,
        more: str | None,
        keyed: int,
    ) -> None:
        self._connection = connection
        self._now = now
        self._types: dict[str, list[str]] = {}
        self.id = queue
        self.name = name
        self.weights = read_weights(weights)
        self.limits = read_limits(more)
        self.keyed = bool(keyed)  # claimable jobs with a concurrency key

    def next_jobs(self, types: frozenset[str] | None, limit: int) -> list[Row]:
        """Return the rows of the next jobs of the given types in claim order."""
        if self.weights is None:
            return self._read(types, 0, MAX_PRIORITY, limit)
        levels = {
            MAX_PRIORITY - rank: self._read(types, rank, rank, limit)
            for rank in range(MAX_PRIORITY + 1)
        }
        return by_weight(self.weights, levels, limit)

    def _read(
        self, types: frozenset[str] | None, lowest: int, highest: int, limit: int
    ) -> list[Row]:
        found = self._read_of("", types, lowest, highest, limit)
        if self.keyed:
            found += self._read_of("keyed_", types, lowest, highest, limit)
            found = sorted(found, key=lambda row: row[:2])[:limit]
        return found

    def _read_of(
        self, kind: str, types: frozenset[str] | None, lowest: int, highest: int, limit: int
    ) -> list[Row]:
        """Read jobs without a key, or with a key if ``kind`` is ``keyed_``."""
        meant = self._meant(kind, types)
        if not meant:
            return []
        if len(meant) == 1:
            only = (self.id, meant[0], lowest, highest, self._now, limit)
            return self._connection.execute(SQL[f"{kind}claimable"], only).fetchall()
        values = (self.id, lowest, highest, self._now)
        name = f"{kind}claimable_seqs"
        found = read_merged(self._connection, name, values, limit, meant)
        return sorted(read_marked(self._connection, "claimable_rows", [row[1] for row in found]))

    def _meant(self, kind: str, types: frozenset[str] | None) -> Sequence[str]:
        """Return the types to read. If few types have claimable jobs, the others are left out."""
        few = self._types.get(kind)
        if few is None:
            few = self._types[kind] = self._waiting_types(kind, _FEW_TYPES)
        if len(few) < _FEW_TYPES:
            return few if types is None else [one for one in few if one in types]
        return self._waiting_types(kind, -1) if types is None else tuple(types)

    def _waiting_types(self, kind: str, limit: int) -> list[str]:
        found = self._connection.execute(SQL[f"{kind}ready_types"], (self.id, limit))
        return [row[0] for row in found]


class _MovingJob:
    """Holds a job that transitions change, and the state that it had before them."""

    __slots__ = ("before", "job_id", "live", "queue", "revived")

    def __init__(self, row: Row) -> None:
        (seq, state, version, attempt, retry_count, max_retries, lease, worker, cancel, deaths,
         timeout, run_at, expires_at, started_at, due, queue, raw_id, error,
         reason) = row  # fmt: skip
        self.before = STATES[state]
        self.live = Live(
            seq, self.before, version, attempt, retry_count, max_retries, lease, worker,
            bool(cancel), deaths, timeout, run_at, expires_at, started_at, due,
        )  # fmt: skip
        self.live.error = error or ""
        self.live.reason = REASONS[reason]
        self.queue: int = queue
        self.job_id = id_from_bytes(raw_id)
        self.revived = False


def record_row(seq: int, raw_id: bytes, queue: int, spec: JobSpec, created_at: float) -> Row:
    """Return a row for ``insert_records``: the fields of a job that never change."""
    return (
        seq, raw_id, queue, spec.type, spec.payload, write_labels(spec), write_more(spec),
        spec.priority, spec.max_retries, spec.ttl, spec.timeout, spec.stored_key, created_at,
    )  # fmt: skip


def new_row(live: Live, queue: int, spec: JobSpec, ready: bool, now: float) -> Row:
    """Return a row for ``insert_live``: the changing fields of a new job.

    For a job with a concurrency key, ``insert_keyed`` needs the key at the end of the row.
    """
    number = int(ready) if spec.concurrency_key is None else 2 * ready
    return (
        live.seq, queue, spec.type, MAX_PRIORITY - spec.priority, number, _NUMBERS[live.state],
        live.version, live.attempt, live.retry_count, live.max_retries, live.timeout, live.run_at,
        live.expires_at, live.due, now, _WORDS[live.reason],
    )  # fmt: skip


def live_row(live: Live, ready: bool, now: float) -> Row:
    """Return the values for ``update_live``: the changing fields of an unfinished job."""
    return (
        int(live.state), int(ready), live.version, live.retry_count, live.lease, live.worker_id,
        int(live.cancel_requested), live.deaths, live.run_at, live.expires_at, live.started_at,
        live.due, live.error or None, live.reason.value, now, live.seq,
    )  # fmt: skip


def end_row(live: Live) -> Row:
    """Return a row for ``end_records``: the last values of a job that has ended."""
    return (
        live.seq, int(live.state), live.version, live.attempt, live.retry_count, live.worker_id,
        live.run_at, int(live.cancel_requested), live.started_at, live.completed_at, live.result,
        live.error or None, live.reason.value,
    )  # fmt: skip


def event_rows(seq: int, entries: Iterable[Entry]) -> list[Row]:
    """Return the rows for ``insert_events`` from the events of the job number ``seq``."""
    return [
        (seq, version, _NUMBERS[before], _NUMBERS[state], _WORDS[reason], at, attempt, worker,
         detail or None, started_at, due)
        for _, version, before, state, reason, at, attempt, worker, detail, _, _, started_at, due, _
        in entries
    ]  # fmt: skip
