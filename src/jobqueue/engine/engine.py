"""Implement the client, dispatch and operator APIs on a store."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from jobqueue.core.api import Inbox, Link
from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.dispatch import HintSource, dispatch_of
from jobqueue.core.errors import (
    Conflict,
    InvalidArgument,
    JobQueueError,
    KeyHeld,
    being_changed,
    no_such_job,
    not_your_worker,
)
from jobqueue.core.explain import Explanation
from jobqueue.core.ids import new_job_ids, new_lease, parse_job_id
from jobqueue.core.job import (
    Cancellation,
    Event,
    Job,
    JobQuery,
    JobSpec,
    NewJob,
    Outcome,
    Page,
    Pulse,
    Refusal,
    SubmitResult,
    SubmitStatus,
    TimeQuery,
    Transition,
    WorkerInfo,
    WorkerStatus,
    check_before_version,
    owner_allows,
)
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.observer import Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Change, JobFilter, Store, Term
from jobqueue.core.stream import StreamRunner
from jobqueue.core.waiting import (
    JOB,
    GrowingPause,
    give_answer_room_back,
    in_turns,
    take_answer_room,
    turn,
)
from jobqueue.engine import admission
from jobqueue.engine.batching import Batcher
from jobqueue.engine.control import Control
from jobqueue.engine.explaining import Explainer
from jobqueue.engine.health import leader_check, store_check, stream_check
from jobqueue.engine.held_back import HeldBackJobs
from jobqueue.engine.links import ENDING, EngineLink, Pulses, ReportCall
from jobqueue.engine.operator import OperatorCalls
from jobqueue.engine.paging import AccountLines, Pages
from jobqueue.engine.roster import Roster
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.schedules import ScheduleCalls
from jobqueue.engine.sessions import Plan, Session, Work
from jobqueue.engine.settings import Dispatch, EngineSettings
from jobqueue.engine.sweeper import Sweeper
from jobqueue.engine.ticker import Ticker
from jobqueue.engine.unserved import Unserved
from jobqueue.engine.watching import Watchers
from jobqueue.engine.worker_names import WorkerNames

T = TypeVar("T")
_log = logging.getLogger("jobqueue.engine")
_LANES = 2  # batches in progress, if the store's writes run in parallel
# Bytes of a payload or result that count as a job in a batch. A batch of the largest payloads would
# keep all callers waiting whose small jobs are in it.
_JOB_BYTES = 4 * 1024
_KEY_PATIENCE = 4.0  # seconds for which a submit with a held key is repeated
_KEY_PAUSES = 0.05, 0.5
_LOCKED_TRIES = 4  # changes of a locked job; the store waits a moment in each
_CANCEL_TRIES = 10  # a job can change between the read and the write, but not for ever
# The most transitions, and bytes of their texts, that a watch keeps while its caller does not read.
_WATCHED = 20
_WATCHED_BYTES = 16 * 1024


class Engine(OperatorCalls, ScheduleCalls):
    """Implements ``core.api.Backend`` on a store."""

    def __init__(
        self,
        store: Store,
        settings: EngineSettings | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        stream: StreamRunner | None = None,
        hints: HintSource | None = None,
    ) -> None:
        """Create an engine, which is not started yet.

        ``hints`` are for an engine that assigns jobs to workers through Kafka (``Roster``). Without
        them, that engine learns of changes only when it next reads the store.
        """
        self._store = store
        self._stream = stream
        self._hints = hints
        self._settings = settings or EngineSettings()
        self._observer = observer or Observer()
        self._clock = clock or SystemClock()
        self._store_check = store_check(store)
        self._leader_check = leader_check(store.leadership)
        self._stream_check = None if stream is None else stream_check(stream)
        self._queue_ttls = admission.QueueTtls(store.queues)
        self._watchers = Watchers(store.reads)
        self._worker_names = WorkerNames(store.workers)
        self._pages = Pages(store.reads)
        self._watches = AccountLines()
        self._started = False
        self._writing: set[asyncio.Task[Any]] = set()

    @property
    def store(self) -> Store:
        return self._store

    async def prepare(self) -> None:
        """Open the store and create the default queue, but start no background task.

        ``start`` calls this method first. Inline mode calls only this method.
        """
        await self._store.open()
        lanes = _LANES if self._store.parallel else 1
        self._submits: Batcher[Sequence[NewJob], list[SubmitResult]] = Batcher(
            self._flush_submits, limit=self._settings.submit_group, weigh=_jobs_weight, lanes=lanes
        )
        self._reports: Batcher[ReportCall, list[bool]] = Batcher(
            self._flush_reports,
            limit=self._settings.report_group,
            weigh=_reports_weight,
            lanes=lanes,
        )
        self._roster: Roster | None = None
        if self._settings.dispatch is Dispatch.ROSTER:
            self._roster = Roster(
                dispatch_of(self._store), self._settings, self._wake_stream, self._stream_flows
            )
        self._scheduler = Scheduler(
            self._store,
            self._settings,
            self._observer,
            claim=None if self._roster is None else self._roster.claim,
        )
        self._sweeper = Sweeper(
            self._store,
            self._settings,
            self._clock,
            self._apply,
            self._scheduler,
            gives_way=self._another_publishes if self._stream is None else None,
            observer=self._observer,
        )
        self._ticker = Ticker(
            self._store,
            self._clock,
            self._settings.ticks,
            self.submit,
            self._leads_under,
            self._sweeper.term_ended,
        )
        self._unserved = Unserved(self._store, self._scheduler.sessions, self._leads_under)
        self._held_back = HeldBackJobs(self._store.queues)
        self._explainer = Explainer(
            self._store,
            self._settings,
            self._scheduler.sessions,
            self._unserved,
            self._held_back,
            self.list_jobs,
        )
        self._pulses = Pulses(self._store.workers, self._scheduler, self._lose)
        self._control = Control(self._store.workers, self._scheduler)
        await self._store.queues.create(dataclasses.replace(self._settings.queue))

    async def start(self) -> None:
        if self._started:
            return
        await self.prepare()
        self._store.on_change(self._changed_elsewhere)
        self._watchers.start()
        if self._settings.dispatch is not Dispatch.ELSEWHERE:
            self._scheduler.start()
            self._sweeper.start()
            self._ticker.start()
            self._unserved.start()
        if self._stream is not None:  # without a term it only measures the leader's lag
            self._stream.start(self._store.stream, self._leads_under)
        if self._roster is not None:
            self._roster.start(self._scheduler, self._sweeper)
            if self._hints is not None:
                self._hints.start(self._roster.heard, self._roster.leads)
        else:
            self._control.start()
        self._started = True

    async def see_workers_off(self, connected: Callable[[str], bool], within: float) -> None:
        """Wait before a stop until workers have reported their jobs: see ``Scheduler.see_off``."""
        if self._started and self._roster is None:  # a roster's workers report to the store
            await self._scheduler.see_off(connected, within)

    async def stop(self) -> None:
        if not self._started:
            await self._store.close()
            return
        self._started = False
        await self._ticker.stop()  # before the submits end
        for check in (self._store_check, self._leader_check, self._stream_check):
            if check is not None:
                await check.stop()
        await self._submits.close()
        await self._reports.close()
        await self._control.stop()
        if self._roster is not None:
            if self._hints is not None:
                await self._hints.stop()
            await self._roster.stop()
        if self._stream is not None:  # before the sweeper, because the stream needs its term
            await self._stream.stop()
        await self._unserved.stop()
        await self._sweeper.stop()
        await self._scheduler.stop()
        while self._writing:
            await asyncio.wait(self._writing)
        await self._watchers.stop()
        await self._store.close()

    async def sweep(self) -> int:
        """Make all transitions that are due and return their number.

        A started engine also does this in the background.
        """
        return await self._sweeper.sweep()

    def _leads_under(self) -> Term | None:
        return self._sweeper.term

    def _wake_stream(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    def _stream_flows(self) -> bool:
        return self._stream is not None and self._stream.flows()

    async def _another_publishes(self) -> bool:
        # If a server without a stream runner leads, no server can publish events.
        return await self._store.stream.lag() is not None

    def _changed_elsewhere(self, changed: Change) -> None:
        if Change.WORK in changed:
            self._scheduler.wake()
        if Change.ENDED in changed:
            self._watchers.changed_elsewhere()
        if Change.CONTROL in changed:
            self._control.heard()
            self._sweeper.lead()
        if Change.SCHEDULES in changed:
            self._ticker.nudge()
        if self._roster is not None:
            if Change.CONTROL in changed:
                self._roster.look()
            elif Change.ENDED in changed:
                self._roster.look_before_long()
        self._wake_stream()

    # -- client ----------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        limit = self._settings.max_payload_bytes
        now = self._clock.now()

        def refusal(spec: JobSpec, ttl: float | None = None) -> SubmitResult | None:
            try:
                if ttl is None:
                    admission.check_spec(spec, limit, now)
                else:
                    admission.check_start_within(spec, ttl, now, "its queue's ttl")
            except InvalidArgument as error:
                return SubmitResult.refused(error)
            return None

        results = await in_turns(refusal, specs)
        # After the checks, because some stores cannot read invalid names.
        places = [place for place, result in enumerate(results) if result is None]
        if ttls := await self._queue_ttls.of([specs[place] for place in places]):
            for place in places:
                if specs[place].ttl is None and specs[place].queue in ttls:
                    results[place] = refusal(specs[place], ttls[specs[place].queue])
            places = [place for place in places if results[place] is None]
        ids = new_job_ids(len(places))
        jobs = [NewJob(job_id, specs[place]) for place, job_id in zip(places, ids, strict=True)]
        group = self._settings.submit_group
        for start in range(0, len(jobs), group):
            try:
                answers = await self._write_jobs(jobs[start : start + group])
            except JobQueueError as error:
                if start == 0:
                    raise
                # Earlier parts are written: the error belongs to this part alone.
                answers = [SubmitResult.refused(error)] * len(jobs[start : start + group])
            for place, answer in zip(places[start : start + group], answers, strict=True):
                results[place] = answer
        return [result for result in results if result is not None]

    async def _write_jobs(self, jobs: Sequence[NewJob]) -> list[SubmitResult]:
        """Submit jobs in a batch. Repeat the jobs whose keys open transactions hold for a while."""
        answers = await self._submits.add(jobs)
        held = _held(answers)
        if not held:
            return answers
        give_up = time.monotonic() + _KEY_PATIENCE
        pause = GrowingPause(*_KEY_PAUSES)
        while held and time.monotonic() < give_up:
            await pause.wait()
            try:
                again = await self._submits.add([jobs[n] for n in held])
            except JobQueueError as error:  # only the repeated jobs; the others are written
                again = [SubmitResult.refused(error)] * len(held)
            for n, answer in zip(held, again, strict=True):
                answers[n] = answer
            held = _held(answers)
        return answers

    async def _flush_submits(self, calls: Sequence[Sequence[NewJob]]) -> list[list[SubmitResult]]:
        jobs = [job for call in calls for job in call] if len(calls) > 1 else calls[0]
        work: dict[str, set[str]] = {}
        for queue, type in {(job.spec.queue, job.spec.type) for job in jobs}:
            work.setdefault(queue, set()).add(type)
        parallel = self._store.parallel
        if self._roster is not None:  # its claims are fenced, but a submit has no fence
            plan = Plan.nothing()
        elif parallel:
            plan = self._scheduler.plan_hand_off(work, len(jobs))
        else:
            plan = self._scheduler.plan(work=work)
        try:
            submission = await self._store.jobs.submit(jobs, plan.claims)
        except BaseException:
            self._scheduler.release(plan)
            raise
        self._scheduler.settle(plan, submission.assigned, looked=not parallel)
        self._after_submit(jobs, submission.results, work, len(submission.assigned))
        if submission.superseded:
            self._after_apply(submission.superseded, by_worker=False)
        return _split(submission.results, [len(call) for call in calls])

    def _after_submit(
        self, jobs: Sequence[NewJob], results: Sequence[SubmitResult], work: Work, assigned: int
    ) -> None:
        accepted: dict[str, int] = {}
        now = 0.0
        for job, result in zip(jobs, results, strict=True):
            if result.status is not SubmitStatus.ACCEPTED:
                continue
            spec = job.spec
            accepted[spec.queue] = accepted.get(spec.queue, 0) + 1
            if spec.delay is not None or spec.run_at is not None or spec.ttl is not None:
                now = now or self._clock.now()
                for wait in (spec.delay, spec.ttl):
                    if wait:
                        self._sweeper.expect(now + wait)
                if spec.run_at:
                    self._sweeper.expect(spec.run_at)
        for queue, count in accepted.items():
            self._observer.entered(queue, State.PENDING, count)
        self._wake_stream()
        if sum(accepted.values()) > assigned:
            # Slots may have become free during the write.
            self._scheduler.wake(work)

    async def get(self, job_id: str) -> Job:
        job = await self._get(job_id)
        job.hint = await self._explainer.hint(job, self._clock.now())
        return job

    async def explain(self, job_id: str) -> Explanation:
        return await self._explainer.explain(await self._get(job_id), self._clock.now())

    async def _get(self, job_id: str) -> Job:
        job = await self._store.reads.get(parse_job_id(job_id))
        if job is None:
            raise no_such_job(job_id)
        return job

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        job_id = parse_job_id(job_id)
        deadline = None if timeout is None else time.monotonic() + timeout
        watcher = self._watchers.enter(job_id)
        try:
            while True:
                watcher.begin()
                await take_answer_room()
                job = await self._get(job_id)
                if job.state in TERMINAL:
                    return job
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    job.hint = await self._explainer.hint(job, self._clock.now())
                    return job
                seq, version = job.seq, job.version
                del job  # free its payload during the wait
                give_answer_room_back()
                await watcher.wait(seq, version, left)
        finally:
            self._watchers.leave(watcher)

    async def cancel(self, job_id: str) -> Cancellation:
        job = await self._get(job_id)
        if job.state in TERMINAL:
            return Cancellation(job.state, requested=False, already_terminal=True)
        locked = 0
        for _ in range(_CANCEL_TRIES):
            outcome = (await self._apply([Transition.cancelled(job.seq)]))[0]
            if outcome.applied:
                return Cancellation(State.DEAD_LETTERED, requested=False)
            if outcome.state is None:
                raise no_such_job(job_id)
            if outcome.state in TERMINAL:
                return Cancellation(outcome.state, requested=False, already_terminal=True)
            if outcome.refusal is Refusal.LOCKED:
                locked += 1
                if locked == _LOCKED_TRIES:
                    raise being_changed(job_id)
                continue
            held = await self._store.jobs.request_cancel(job.seq)
            if held is not None:
                session = self._scheduler.sessions.get(held.worker_id)
                if session is not None:
                    session.inbox.cancel([held.lease])
                return Cancellation(State.RUNNING, requested=True)
        raise Conflict(f"job {job_id} changes too fast to be cancelled; try again")

    async def list_jobs(self, query: JobQuery) -> Page:
        admission.check_query(query)
        before = admission.read_page_token(query.page_token)
        wanted = JobFilter(states=query.states, before_seq=before, **query.conditions())
        return await self._pages.newest(wanted, query.limit)

    async def list_by_time(self, query: TimeQuery) -> list[Job]:
        admission.check_time_query(query)
        return await self._pages.by_time(query)

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        job_id = parse_job_id(job_id)
        check_before_version(before_version)
        events = await self._store.reads.history(job_id, before_version)
        if not events and (before_version is None or await self._store.reads.get(job_id) is None):
            raise no_such_job(job_id)
        return events

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        job_id = parse_job_id(job_id)
        watcher = self._watchers.enter(job_id, every_move=True)
        seq: int | None = None
        version = 0
        try:
            while True:
                watcher.begin()
                end = version + _WATCHED + 1  # a long history is read in parts
                async with self._watches.line():  # a caller may watch a job thousands of times
                    events = await self._store.reads.history(job_id, end, _WATCHED)
                if not events:
                    raise no_such_job(job_id)
                ended = events[-1].to_state in TERMINAL
                news, whole = _first_of([one for one in events if one.version > version])
                del events  # the others must not stay in memory while the caller reads nothing
                while news:
                    version = news[0].version
                    yield news.popleft()
                if not whole or version + 1 == end:
                    continue
                if ended:
                    return
                if seq is None:
                    seq = await self._store.reads.seq_of(job_id)
                    if seq is None:
                        raise no_such_job(job_id)
                await watcher.wait(seq, version)
        finally:
            self._watchers.leave(watcher)

    # -- dispatch --------------------------------------------------------------------------

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        if self._settings.dispatch is not Dispatch.LINKS:
            raise Conflict(
                "this server accepts no connections from workers: its workers receive jobs through"
                " Kafka; start jq-worker with kafka.dispatch and the redis:// address of the store"
            )
        admission.check_worker(info)
        info = dataclasses.replace(info, link=new_lease())
        lost = await self._worker_names.register(info)
        if lost:
            error = f"worker {info.id} was started anew"
            await self._apply([Transition.worker_lost(one.seq, one.lease, error) for one in lost])
        session = Session(info, inbox)
        status = await self._store.workers.status(info.id)
        if status not in (None, WorkerStatus.ONLINE):
            session.open = False  # an operator drained the worker before it connected
            session.told = status
        # Leases from another server, or from the worker's last connection, are part of its load.
        session.held.update(one.lease for one in await self._store.workers.held(info.id))
        session.inherited = frozenset(session.held)
        replaced = self._scheduler.sessions.add(session)
        if replaced is not None:
            replaced.close()
            self._scheduler.wake()  # if it has fewer types now, a fallback may take the others
        self._unserved.workers_changed()
        return EngineLink(
            session, self._store.workers, self._scheduler, self._reports.add, self._pulses
        )

    def pulse(
        self,
        worker_id: str,
        incarnation: int,
        leases: Sequence[int],
        begun: Sequence[int] = (),
        complete: bool = True,
        progress: Mapping[int, Progress] = NO_PROGRESS,
        overrun: int | None = None,
        *,
        owner: str = "",
    ) -> Pulse:
        admission.check_worker_id(worker_id)
        return self._pulses.beat(
            worker_id, incarnation, owner, leases, begun, complete, progress, overrun
        )

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        admission.check_worker_id(worker_id)
        session = self._scheduler.sessions.get(worker_id)
        if session is not None and session.info.incarnation == incarnation:
            if not owner_allows(session.info.owner, owner):
                raise not_your_worker(worker_id)
            self._scheduler.dismiss(worker_id)
        await self._store.workers.retire(worker_id, incarnation, owner=owner)

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        admission.check_queue_names(names)
        missing: list[str] = []
        for name in dict.fromkeys(names):
            async with self._pages.line():
                await turn(JOB)
                if not await self._store.queues.stats(name):
                    missing.append(name)
        return missing

    def _lose(self, transitions: Sequence[Transition]) -> None:
        self._keep(asyncio.create_task(self._apply_quietly(transitions)))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _apply_quietly(self, transitions: Sequence[Transition]) -> None:
        try:
            await self._apply(transitions)
        except JobQueueError as error:
            _log.warning(
                "cannot fail over %d lost leases: %s; trying again after the next heartbeats",
                len(transitions),
                error,
            )

    async def _flush_reports(self, calls: Sequence[ReportCall]) -> list[list[bool]]:
        transitions = [report for call in calls for report in call.reports]
        freed: dict[Session, int] = {}
        ending: dict[Session, set[int]] = {}
        for call in calls:
            if call.freed and not call.session.drained:
                freed[call.session] = freed.get(call.session, 0) + call.freed
            ending.setdefault(call.session, set()).update(
                report.lease
                for report in call.reports
                if report.move in ENDING and report.lease is not None
            )
        outcomes = await self._write(transitions, freed, ending, by_worker=True)
        for session, leases in ending.items():
            self._scheduler.relieve(session, leases)
        accepted = [outcome.refusal is None for outcome in outcomes]
        return _split(accepted, [len(call.reports) for call in calls])

    async def _apply(self, transitions: Sequence[Transition]) -> list[Outcome]:
        """Write transitions that no worker reported.

        The write has its own task. It may also claim jobs, which must be delivered even if the
        caller of this method is cancelled.
        """
        task = asyncio.create_task(self._write(transitions))
        self._keep(task)
        task.add_done_callback(_note_failure)
        return await asyncio.shield(task)

    async def _write(
        self,
        transitions: Sequence[Transition],
        freed: dict[Session, int] | None = None,
        ending: dict[Session, set[int]] | None = None,
        *,
        by_worker: bool = False,
    ) -> list[Outcome]:
        """Write transitions and claims together, then update the other parts of the engine."""
        # If a store runs writes in parallel, the scheduler claims in a write of its own.
        plan = (
            Plan.nothing()
            if self._store.parallel
            else self._scheduler.plan(freed or {}, ending or {})
        )
        try:
            application = await self._store.jobs.apply(transitions, plan.claims)
        except BaseException:
            self._scheduler.release(plan)
            raise
        for session, count in (freed or {}).items():
            session.free += count
        self._scheduler.settle(plan, application.assigned)
        if application.freed:
            self._scheduler.freed(application.freed, plan.scopes)
        self._after_apply(application.outcomes, by_worker)
        return application.outcomes

    def _after_apply(self, outcomes: Sequence[Outcome], by_worker: bool) -> None:
        entered: dict[tuple[str, State], int] = {}
        ran: dict[str, list[float]] = {}
        claimable = False
        for outcome in outcomes:
            state = outcome.state
            if outcome.refusal is not None or state is None:
                continue
            queue = outcome.queue
            for step, _ in outcome.steps:
                entered[queue, step] = entered.get((queue, step), 0) + 1
            if outcome.ran_for is not None:
                ran.setdefault(queue, []).append(outcome.ran_for)
            if state is State.PENDING:
                claimable = True
            elif outcome.due is not None:
                self._sweeper.expect(outcome.due)
            if outcome.lease is not None and not by_worker:
                session = self._scheduler.sessions.get(outcome.worker_id)
                if session is not None:  # the lease ended without the worker's report
                    self._scheduler.relieve(session, [outcome.lease])
                    session.inbox.cancel([outcome.lease])
        for (queue, state), count in entered.items():
            self._observer.entered(queue, state, count)
        for queue, seconds in ran.items():
            self._observer.ran(queue, seconds)
        if claimable:
            self._scheduler.wake()
        self._wake_stream()
        if self._watchers:
            self._watchers.written(outcomes)


def _jobs_weight(jobs: Sequence[NewJob]) -> int:
    return len(jobs) + sum([len(job.spec.payload) for job in jobs]) // _JOB_BYTES


def _reports_weight(call: ReportCall) -> int:
    results = [len(report.result) for report in call.reports if report.result]
    return len(call.reports) + sum(results) // _JOB_BYTES


def _first_of(events: Sequence[Event]) -> tuple[deque[Event], bool]:
    """Return the first events, with about _WATCHED_BYTES of text, and True if these are all."""
    first: deque[Event] = deque()
    size = 0
    for event in events:
        size += len(event.detail)
        if first and size > _WATCHED_BYTES:
            return first, False
        first.append(event)
    return first, True


def _note_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.debug("a write of transitions failed: %s", task.exception())  # the caller got it, too


def _held(answers: Sequence[SubmitResult]) -> list[int]:
    """Return the places of the jobs whose keys open transactions of other programs hold."""
    return [n for n, one in enumerate(answers) if isinstance(one.error, KeyHeld)]


def _split(answers: list[T], sizes: list[int]) -> list[list[T]]:
    """Split the answers of a batch into one list for each call; ``sizes`` are their lengths."""
    return [answers[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
