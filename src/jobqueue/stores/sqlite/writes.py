"""The write path: submit, claim and apply, each inside the transaction of the writer's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobqueue.core.accept import accept, full, repeated
from jobqueue.core.decide import Decision, Live, decide
from jobqueue.core.errors import no_such_queue
from jobqueue.core.ids import id_from_bytes, id_to_bytes, new_lease
from jobqueue.core.job import (
    NO_LABELS,
    Assignment,
    JobSpec,
    NewJob,
    Outcome,
    Refusal,
    SubmitResult,
    Transition,
)
from jobqueue.core.lifecycle import TERMINAL, Move, Reason, State
from jobqueue.core.queue import MAX_PRIORITY, QueueSettings
from jobqueue.core.retry import RetryPolicy
from jobqueue.core.store import ALL_QUEUES, Claim, Rules
from jobqueue.core.weights import by_weight, merge_queues
from jobqueue.stores.queue_rows import read_weights
from jobqueue.stores.rows import read_more, write_labels, write_more
from jobqueue.stores.sqlite.statements import (
    SQL,
    Row,
    read_marked,
    read_merged,
    write_marked,
    write_rows,
)

_ASSIGNED = Reason.ASSIGNED.value
_SUBMITTED = Reason.SUBMITTED.value
_STATES = tuple(State)
_FEW_TYPES = 8
_BY_NUMBER = {int(state): state for state in State}


class Tally:
    """What a transaction adds to the queues' figures."""

    def __init__(self) -> None:
        self._depth: dict[int, list[int]] = {}
        self._ended: dict[int, list[float]] = {}

    def enter(self, queue: int, before: State | None, after: State | None, count: int = 1) -> None:
        """Jobs moved from one state to another."""
        depth = self._depth.setdefault(queue, [0] * len(_STATES))
        if before is not None:
            depth[before - 1] -= count
        if after is not None:
            depth[after - 1] += count

    def ended(self, queue: int, succeeded: bool, ran_for: float) -> None:
        """An attempt ended after running that long."""
        figures = self._ended.setdefault(queue, [0, 0, 0.0, 0])
        figures[0 if succeeded else 1] += 1
        figures[2] += ran_for
        figures[3] += 1

    def write(self, connection: sqlite3.Connection) -> None:
        """Add it up in the database."""
        for queue in self._depth.keys() | self._ended.keys():
            depth = self._depth.get(queue) or [0] * len(_STATES)
            ended = self._ended.get(queue) or [0, 0, 0.0, 0]
            connection.execute(SQL["count"], (*depth, *ended, queue))


class _Admission:
    """A queue's settings and free places, as one batch of submits sees them."""

    __slots__ = ("id", "pending", "settings")

    def __init__(self, row: Row) -> None:
        _, self.id, max_retries, ttl, timeout, capacity, self.pending = row
        self.settings = QueueSettings(
            max_retries=max_retries, ttl=ttl, timeout=timeout, capacity=capacity
        )


def submit(
    connection: sqlite3.Connection, jobs: Sequence[NewJob], now: float, rules: Rules, tally: Tally
) -> list[SubmitResult]:
    """(new) -> PENDING, each job on its own."""
    names = list({job.spec.queue for job in jobs})
    queues = {row[0]: _Admission(row) for row in read_marked(connection, "queues_by_name", names)}
    last = connection.execute(SQL["last_seq"]).fetchone()
    seq = last[0] if last else 0
    results: list[SubmitResult] = []
    records: list[Row] = []
    live: list[Row] = []
    events: list[Row] = []
    for job in jobs:
        spec = job.spec
        queue = queues.get(spec.queue)
        if queue is None:
            results.append(SubmitResult.refused(no_such_queue(spec.queue)))
            continue
        raw_id = id_to_bytes(job.id)
        stored, shared = spec.stored_key, spec.shared_key
        if stored is not None:
            found = connection.execute(SQL["find_key"], (queue.id, stored, now)).fetchone()
            if found is None and shared is not None:
                found = connection.execute(SQL["find_key"], (queue.id, shared, now)).fetchone()
            if found is not None:
                results.append(repeated(spec, id_from_bytes(found[0]), found[1]))
                continue
        capacity = queue.settings.capacity
        if 0 < capacity <= queue.pending:
            results.append(full(spec.queue, capacity))
            continue
        queue.pending += 1
        seq += 1
        new = accept(spec, queue.settings, now)
        spec = new.spec
        records.append(
            (seq, raw_id, queue.id, spec.type, spec.payload, write_labels(spec), write_more(spec),
             spec.priority, spec.max_retries, spec.ttl, spec.timeout, stored, now)
        )  # fmt: skip
        live.append(
            (seq, queue.id, spec.type, MAX_PRIORITY - spec.priority, int(new.ready), 1, 1, 0, 0,
             spec.max_retries, spec.timeout, spec.run_at, new.expires_at, new.due, now, _SUBMITTED)
        )  # fmt: skip
        events.append((seq, 1, None, 1, _SUBMITTED, now, 0, None, None, None, spec.run_at))
        if stored is not None:
            expiry = now + rules.key_ttl
            row = (queue.id, stored, seq, raw_id, spec.fingerprint(), expiry)
            connection.execute(SQL["put_key"], row)
        results.append(SubmitResult.accepted(job.id))
    if records:
        write_rows(connection, "insert_records", records)
        write_rows(connection, "insert_live", live)
        write_rows(connection, "insert_events", events)
        for row in records:
            tally.enter(row[2], None, State.PENDING)
    return results


class _Claimable:
    """A queue that jobs may be claimed from; some types of its jobs, once they were read."""

    __slots__ = ("id", "name", "types", "weights")

    def __init__(self, queue: int, name: str, weights: str | None) -> None:
        self.id = queue
        self.name = name
        self.weights = read_weights(weights)
        self.types: list[str] | None = None


def claim(
    connection: sqlite3.Connection, claims: Sequence[Claim], now: float, rules: Rules, tally: Tally
) -> list[Assignment]:
    """PENDING -> ASSIGNED, priority first, then FIFO."""
    if not claims:
        return []
    claimable = [_Claimable(*row) for row in connection.execute(SQL["claimable_queues"])]
    names = {queue.id: queue.name for queue in claimable}
    assigned: list[Assignment] = []
    for wanted in claims:
        everything = ALL_QUEUES in wanted.queues
        queues = [
            queue
            for queue in claimable
            if (everything or queue.name in wanted.queues) and queue.name not in wanted.without
        ]
        rows = _next(connection, queues, wanted.types, now, len(wanted.slots))
        if not rows:
            continue
        due = now + rules.assignment_timeout
        updates: list[Row] = []
        events: list[Row] = []
        for row, worker in zip(rows, wanted.slots, strict=False):
            (_, seq, queue, version, attempt, retry_count, max_retries, timeout, expires_at,
             raw_id, kind, payload, labels, more, priority, created_at, deaths) = row  # fmt: skip
            lease = new_lease()
            updates.append((seq, lease, worker, due, now))
            events.append(
                (seq, version + 1, 1, 2, _ASSIGNED, now, attempt + 1, worker, None, None, None)
            )
            assigned.append(
                Assignment(
                    seq,
                    id_from_bytes(raw_id),
                    JobSpec(
                        payload=payload,
                        queue=names[queue],
                        type=kind,
                        priority=priority,
                        max_retries=max_retries,
                        timeout=timeout,
                        labels=json.loads(labels) if labels else NO_LABELS,
                        **read_more(more),
                    ),
                    attempt + 1,
                    lease,
                    worker,
                    retry_count,
                    created_at,
                    None if expires_at is None else expires_at - now,
                    deaths,
                )
            )
            tally.enter(queue, State.PENDING, State.ASSIGNED)
        write_rows(connection, "assign", updates)
        write_rows(connection, "insert_events", events)
    return assigned


def _next(
    connection: sqlite3.Connection,
    queues: Sequence[_Claimable],
    types: frozenset[str] | None,
    now: float,
    limit: int,
) -> list[Row]:
    found = [(queue.weights is not None, _next_of(connection, queue, types, now, limit))
             for queue in queues]  # fmt: skip
    return merge_queues(found, limit)


def _next_of(
    connection: sqlite3.Connection,
    queue: _Claimable,
    types: frozenset[str] | None,
    now: float,
    limit: int,
) -> list[Row]:
    meant = _meant(connection, queue, types)
    if not meant:
        return []

    def read(lowest: int, highest: int) -> list[Row]:
        if len(meant) == 1:
            only = (queue.id, meant[0], lowest, highest, now, limit)
            return connection.execute(SQL["claimable"], only).fetchall()
        values = (queue.id, lowest, highest, now)
        seqs = [row[1] for row in read_merged(connection, "claimable_seqs", values, limit, meant)]
        return sorted(read_marked(connection, "claimable_rows", seqs))

    if queue.weights is None:
        return read(0, MAX_PRIORITY)
    levels = {MAX_PRIORITY - rank: read(rank, rank) for rank in range(MAX_PRIORITY + 1)}
    return by_weight(queue.weights, levels, limit)


def _meant(
    connection: sqlite3.Connection, queue: _Claimable, types: frozenset[str] | None
) -> Sequence[str]:
    """The types of jobs to look for: those that wait, if they are few, or those of the claim."""
    if queue.types is None:
        queue.types = _types(connection, queue, _FEW_TYPES)
    if len(queue.types) < _FEW_TYPES:
        return queue.types if types is None else [one for one in queue.types if one in types]
    return _types(connection, queue, -1) if types is None else tuple(types)


def _types(connection: sqlite3.Connection, queue: _Claimable, limit: int) -> list[str]:
    return [row[0] for row in connection.execute(SQL["ready_types"], (queue.id, limit))]


class _Row:
    """A live row under decision, and what became of it."""

    __slots__ = ("before", "job_id", "live", "queue", "revived")

    def __init__(self, row: Row) -> None:
        (seq, state, version, attempt, retry_count, max_retries, lease, worker, cancel, deaths,
         timeout, run_at, expires_at, started_at, due, queue, raw_id, error) = row  # fmt: skip
        self.before = _BY_NUMBER[state]
        self.live = Live(
            seq, self.before, version, attempt, retry_count, max_retries, lease, worker,
            bool(cancel), deaths, timeout, run_at, expires_at, started_at, due,
        )  # fmt: skip
        self.live.error = error or ""
        self.queue: int = queue
        self.job_id = id_from_bytes(raw_id)
        self.revived = False


class Home(NamedTuple):
    """What a transition has to know of its job's queue."""

    name: str
    deleted: int
    policy: RetryPolicy


def apply(
    connection: sqlite3.Connection,
    transitions: Sequence[Transition],
    now: float,
    rules: Rules,
    queues: Mapping[int, Home],
    tally: Tally,
) -> list[Outcome]:
    """Every other transition, each checked and fenced."""
    rows = _lock(connection, transitions)
    outcomes: list[Outcome] = []
    events: list[Row] = []
    changed: dict[int, _Row] = {}
    for asked in transitions:
        row = rows.get(asked.seq)
        if row is None:
            outcomes.append(Outcome(Refusal.NO_SUCH_JOB))
            continue
        live = row.live
        before = live.state
        home = queues[row.queue]
        if asked.move is Move.RETRY_BY_HAND and home.deleted:
            outcomes.append(Outcome(Refusal.NO_QUEUE, before, live.reason, row.job_id, home.name))
            continue
        decision = decide(live, asked, now=now, rules=rules, policy=home.policy)
        if isinstance(decision, Refusal):
            outcomes.append(Outcome(decision, before, live.reason, row.job_id, home.name))
            continue
        outcomes.append(decision.outcome(live, row.job_id, home.name))
        changed[live.seq] = row
        if before is State.DEAD_LETTERED:
            row.revived = True
        tally.enter(row.queue, before, live.state)
        if decision.ran_for is not None:
            tally.ended(row.queue, live.state is State.DONE, decision.ran_for)
        _record_events(events, live, before, decision, asked.error, now)
    if changed:
        _write(connection, list(changed.values()), now)
        write_rows(connection, "insert_events", events)
    return outcomes


def _lock(connection: sqlite3.Connection, transitions: Sequence[Transition]) -> dict[int, _Row]:
    seqs = [asked.seq for asked in transitions]
    rows = {row[0]: _Row(row) for row in read_marked(connection, "lock_live", seqs)}
    missing = [seq for seq in seqs if seq not in rows]
    if missing:
        rows.update((row[0], _Row(row)) for row in read_marked(connection, "lock_ended", missing))
    return rows


def _record_events(
    events: list[Row], live: Live, before: State, decision: Decision, detail: str, now: float
) -> None:
    version = live.version - len(decision.steps)
    worker = decision.worker_id if decision.lease is not None else None
    here = int(before)
    for state, reason in decision.steps:
        version += 1
        said = None if reason is Reason.STARTED else (detail or None)
        number = int(state)
        started_at = due = None
        if state is State.FAILED:
            started_at = live.started_at
            due = live.due if live.state is State.FAILED else None
        events.append(
            (live.seq, version, here, number, reason.value, now, live.attempt, worker, said,
             started_at, due)
        )  # fmt: skip
        here = number


def _write(connection: sqlite3.Connection, changed: list[_Row], now: float) -> None:
    started: list[Row] = []
    ended: list[Row] = []
    for row in changed:
        live = row.live
        if row.revived:
            connection.execute(
                SQL["revive_live"],
                (int(live.state), live.version, now, live.reason.value, live.seq),
            )
            connection.execute(SQL["revive_record"], (live.seq,))
        if live.state in TERMINAL:
            ended.append(
                (live.seq, int(live.state), live.version, live.attempt, live.retry_count,
                 live.worker_id, live.run_at, int(live.cancel_requested), live.started_at,
                 live.completed_at, live.result, live.error or None, live.reason.value)
            )  # fmt: skip
        elif live.state is State.RUNNING and row.before is State.ASSIGNED:
            started.append((live.seq, live.version, live.started_at, live.due, now))
        elif not row.revived or live.state is not State.PENDING:
            connection.execute(
                SQL["update_live"],
                (int(live.state), int(live.state is State.PENDING), live.version,
                 live.retry_count, live.lease, live.worker_id, int(live.cancel_requested),
                 live.deaths, live.run_at, live.expires_at, live.started_at, live.due,
                 live.error or None, live.reason.value, now, live.seq),
            )  # fmt: skip
    if started:
        write_rows(connection, "start_live", started)
    if ended:
        write_marked(connection, "end_live", [row[0] for row in ended])
        write_rows(connection, "end_records", ended)
