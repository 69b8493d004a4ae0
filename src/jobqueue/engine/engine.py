"""The engine: client, dispatch and operator API over a store."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import cast

from jobqueue.core.api import Inbox, Link
from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.dispatch import DispatchStore, HintSource
from jobqueue.core.errors import (
    Conflict,
    InvalidArgument,
    JobQueueError,
    NotFound,
    not_your_worker,
)
from jobqueue.core.ids import new_job_ids, new_lease, parse_job_id
from jobqueue.core.job import (
    MAX_HISTORY,
    Cancellation,
    Event,
    Job,
    JobQuery,
    JobSpec,
    NewJob,
    Outcome,
    Page,
    Pulse,
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
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.progress import NO_PROGRESS, Progress
from jobqueue.core.store import Change, JobFilter, Store, Term
from jobqueue.core.stream import StreamRunner
from jobqueue.core.waiting import (
    give_answer_room_back,
    in_turns,
    take_answer_room,
)
from jobqueue.engine import admission
from jobqueue.engine.batching import Batcher
from jobqueue.engine.control import Control
from jobqueue.engine.health import leader_check, store_check, stream_check
from jobqueue.engine.links import ENDING, EngineLink, ReportCall
from jobqueue.engine.operator import OperatorCalls
from jobqueue.engine.paging import Pages
from jobqueue.engine.pulses import Pulses
from jobqueue.engine.queue_ttls import QueueTtls
from jobqueue.engine.roster import Roster
from jobqueue.engine.scheduler import Scheduler
from jobqueue.engine.seeing_off import see_off
from jobqueue.engine.sessions import Plan, Session, Work
from jobqueue.engine.settings import Dispatch, EngineSettings
from jobqueue.engine.sweeper import Sweeper
from jobqueue.engine.unserved import Unserved
from jobqueue.engine.watching import Watchers
from jobqueue.engine.worker_names import WorkerNames

_log = logging.getLogger("jobqueue.engine")
_LANES = 2  # batches in flight, where the store's writes run beside each other
_CANCEL_TRIES = 10  # a job can change state between our look and our write, but not for ever


class Engine(OperatorCalls):
    """Implements ``core.api.Backend``."""

    def __init__(
        self,
        store: Store,
        settings: EngineSettings | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        stream: StreamRunner | None = None,
        hints: HintSource | None = None,
    ) -> None:
        """``hints`` wake a roster; without them it finds out by itself, later."""
        self._store = store
        self._stream = stream
        self._hints = hints
        self._settings = settings or EngineSettings()
        self._observer = observer or Deaf()
        self._clock = clock or SystemClock()
        self._store_check = store_check(store)
        self._leader_check = leader_check(store)
        self._stream_check = None if stream is None else stream_check(stream)
        self._queue_ttls = QueueTtls(store)
        self._watchers = Watchers(store)
        self._worker_names = WorkerNames(store)
        self._pages = Pages(store)
        self._started = False
        self._losing: set[asyncio.Task[object]] = set()
        self._writing: set[asyncio.Task[list[Outcome]]] = set()

    @property
    def store(self) -> Store:
        """The store behind it."""
        return self._store

    async def prepare(self) -> None:
        """Open the store and make the default queue, but start no task.

        For a caller who moves jobs on by itself: inline mode.
        """
        await self._store.open()
        self._submits: Batcher[Sequence[NewJob], list[SubmitResult]] = Batcher(
            self._flush_submits,
            limit=self._settings.submit_group,
            weigh=len,
            lanes=_LANES if self._store.parallel else 1,
        )
        self._reports: Batcher[ReportCall, list[bool]] = Batcher(
            self._flush_reports,
            limit=self._settings.report_group,
            weigh=lambda call: len(call.reports),
            lanes=_LANES if self._store.parallel else 1,
        )
        self._roster = self._make_roster()
        self._scheduler = Scheduler(
            self._store,
            self._settings,
            self._observer,
            claim=self._roster.claim if self._roster is not None else None,
        )
        self._sweeper = Sweeper(
            self._store,
            self._settings,
            self._clock,
            self._apply,
            promoted=self._scheduler.wake,
            offline=self._scheduler.dismiss,
            gives_way=self._stream_is_anothers if self._stream is None else None,
            observer=self._observer,
        )
        self._unserved = Unserved(self._store, self._scheduler.sessions, self._leads_under)
        self._pulses = Pulses(self._store, self._scheduler, self._lose)
        self._control = Control(self._store, self._scheduler)
        await self._store.create_queue(dataclasses.replace(self._settings.queue))

    async def start(self) -> None:
        """Open the store, make the default queue, start the background tasks."""
        if self._started:
            return
        await self.prepare()
        self._store.on_change(self._changed_elsewhere)
        self._watchers.start()
        if self._settings.dispatch is not Dispatch.ELSEWHERE:
            self._scheduler.start()
            self._sweeper.start()
            self._unserved.start()
        if self._stream is not None:  # without a term it only tells how far another one is
            self._stream.start(self._store, self._leads_under)
        if self._roster is not None:
            self._roster.start(self._scheduler)
            if self._hints is not None:
                self._hints.start(self._roster.heard, self._roster.leads)
        else:
            self._control.start()
        self._started = True

    async def see_workers_off(self, connected: Callable[[str], bool], within: float) -> None:
        """Before a stop: assign nothing more, and let workers that stop, too, report their jobs.

        ``connected`` says by its id whether a worker can still report here.
        """
        if self._started and self._roster is None:  # a roster's workers report to the store
            await see_off(self._scheduler, connected, within)

    async def stop(self) -> None:
        """Take no more, finish what is in flight, close the store."""
        if not self._started:
            await self._store.close()
            return
        self._started = False
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
        if self._stream is not None:  # while we lead: it works under our term
            await self._stream.stop()
        await self._unserved.stop()
        await self._sweeper.stop()
        await self._scheduler.stop()
        while self._losing or self._writing:
            await asyncio.wait([*self._losing, *self._writing])
        await self._watchers.stop()
        await self._store.close()

    async def sweep(self) -> int:
        """Make every move that is due; returns how many. Background tasks do it by themselves."""
        return await self._sweeper.sweep()

    def _make_roster(self) -> Roster | None:
        if self._settings.dispatch is not Dispatch.ROSTER:
            return None
        return Roster(
            cast(DispatchStore, self._store),  # whoever sets it up sees to that
            self._settings,
            self._leads_under,
            self._leads_no_more,
            self._wake_stream,
            self._stream_flows,
        )

    def _leads_under(self) -> Term | None:
        return self._sweeper.term

    def _leads_no_more(self) -> None:
        self._sweeper.term_ended()

    def _wake_stream(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    def _stream_flows(self) -> bool:
        return self._stream is not None and self._stream.flows()

    async def _stream_is_anothers(self) -> bool:
        """A leader without a stream would keep the one that has it from publishing."""
        return await self._store.stream_lag() is not None

    def _changed_elsewhere(self, changed: Change) -> None:
        if Change.WORK in changed:
            self._scheduler.wake()
        if Change.ENDED in changed:
            self._watchers.changed_elsewhere()
        if Change.CONTROL in changed:
            self._control.heard()
            self._sweeper.lead()
        if self._roster is not None:
            if Change.CONTROL in changed:
                self._roster.look()
            elif Change.ENDED in changed:
                self._roster.look_before_long()
        self._wake_stream()

    # -- client ----------------------------------------------------------------------------

    async def submit(self, specs: Sequence[JobSpec]) -> list[SubmitResult]:
        """See ``ClientApi.submit``."""
        limit = self._settings.max_payload_bytes
        now = self._clock.now()

        def refusal(spec: JobSpec) -> SubmitResult | None:
            try:
                admission.check_spec(spec, limit, now)
            except InvalidArgument as error:
                return SubmitResult.refused(error)
            return None

        results = await in_turns(refusal, specs)
        # Only now: the store need not understand the name of every queue that is asked for.
        good = [place for place, result in enumerate(results) if result is None]
        ttls = await self._queue_ttls.of([specs[place] for place in good])
        jobs: list[NewJob] = []
        places: list[int] = []
        for place, job_id in zip(good, new_job_ids(len(good)), strict=True):
            spec = specs[place]
            try:
                if spec.ttl is None and spec.queue in ttls:
                    admission.check_start_within(spec, ttls[spec.queue], now, "its queue's ttl")
            except InvalidArgument as error:
                results[place] = SubmitResult.refused(error)
                continue
            jobs.append(NewJob(job_id, spec))
            places.append(place)
        group = self._settings.submit_group
        for start in range(0, len(jobs), group):
            try:
                answers = await self._submits.add(jobs[start : start + group])
            except JobQueueError as error:
                if start == 0:
                    raise
                # An earlier part is written: the error belongs to the rest alone.
                answers = [SubmitResult.refused(error)] * len(jobs[start : start + group])
            for place, answer in zip(places[start : start + group], answers, strict=True):
                results[place] = answer
        return [result for result in results if result is not None]

    async def _flush_submits(self, calls: Sequence[Sequence[NewJob]]) -> list[list[SubmitResult]]:
        jobs = [job for call in calls for job in call] if len(calls) > 1 else calls[0]
        work: dict[str, set[str]] = {}
        for queue, type in {(job.spec.queue, job.spec.type) for job in jobs}:
            work.setdefault(queue, set()).add(type)
        parallel = self._store.parallel
        if self._roster is not None:  # what it claims is fenced by its term, a submit is not
            plan = Plan.nothing()
        elif parallel:
            plan = self._scheduler.plan_hand_off(work, len(jobs))
        else:
            plan = self._scheduler.plan(work=work)
        try:
            submission = await self._store.submit(jobs, plan.claims)
        except BaseException:
            self._scheduler.release(plan)
            raise
        self._scheduler.settle(plan, submission.assigned, looked=not parallel)
        self._after_submit(jobs, submission.results, work, len(submission.assigned))
        answers: list[list[SubmitResult]] = []
        start = 0
        for call in calls:
            answers.append(submission.results[start : start + len(call)])
            start += len(call)
        return answers

    def _after_submit(
        self,
        jobs: Sequence[NewJob],
        results: Sequence[SubmitResult],
        work: Work,
        assigned: int,
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
                for at in (
                    spec.run_at,
                    spec.delay and now + spec.delay,
                    spec.ttl and now + spec.ttl,
                ):
                    if at:
                        self._sweeper.expect(at)
        for queue, count in accepted.items():
            self._observer.entered(queue, State.PENDING, count)
        self._wake_stream()
        if sum(accepted.values()) > assigned:
            # Slots may have come free while this was being written.
            self._scheduler.wake(work)

    async def get(self, job_id: str) -> Job:
        """See ``ClientApi.get``."""
        job = await self._get(job_id)
        job.hint = await self._unserved.hint(job, self._clock.now())
        return job

    async def _get(self, job_id: str) -> Job:
        job = await self._store.get(parse_job_id(job_id))
        if job is None:
            raise _no_job(job_id)
        return job

    async def wait(self, job_id: str, timeout: float | None) -> Job:
        """See ``ClientApi.wait``."""
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
                    job.hint = await self._unserved.hint(job, self._clock.now())
                    return job
                seq, version = job.seq, job.version
                del job  # with its payload, while nothing happens
                give_answer_room_back()
                await watcher.wait(seq, version, left)
        finally:
            self._watchers.leave(watcher)

    async def cancel(self, job_id: str) -> Cancellation:
        """See ``ClientApi.cancel``."""
        job = await self._get(job_id)
        if job.state in TERMINAL:
            return Cancellation(job.state, requested=False, already_terminal=True)
        for _ in range(_CANCEL_TRIES):
            outcome = (await self._apply([Transition.cancelled(job.seq)]))[0]
            if outcome.applied:
                return Cancellation(State.DEAD_LETTERED, requested=False)
            if outcome.state is None:
                raise _no_job(job_id)
            if outcome.state in TERMINAL:
                return Cancellation(outcome.state, requested=False, already_terminal=True)
            held = await self._store.request_cancel(job.seq)
            if held is not None:
                session = self._scheduler.sessions.get(held.worker_id)
                if session is not None:
                    session.inbox.cancel([held.lease])
                return Cancellation(State.RUNNING, requested=True)
        raise Conflict(f"job {job_id} changes too fast to be cancelled; try again")

    async def list_jobs(self, query: JobQuery) -> Page:
        """See ``ClientApi.list_jobs``."""
        admission.check_query(query)
        before = admission.read_page_token(query.page_token)
        wanted = JobFilter(
            query.queue,
            query.states,
            query.type,
            before,
            0,
            query.reasons,
            query.error,
            query.since,
            query.until,
        )
        return await self._pages.newest(wanted, query.limit)

    async def list_by_time(self, query: TimeQuery) -> list[Job]:
        """See ``TimelineApi.list_by_time``."""
        admission.check_time_query(query)
        return await self._pages.by_time(query)

    async def history(self, job_id: str, before_version: int | None = None) -> list[Event]:
        """See ``ClientApi.history``."""
        job_id = parse_job_id(job_id)
        check_before_version(before_version)
        events = await self._store.history(job_id, before_version)
        if not events and (before_version is None or await self._store.get(job_id) is None):
            raise _no_job(job_id)
        return events

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        """See ``ClientApi.watch``."""
        job_id = parse_job_id(job_id)
        watcher = self._watchers.enter(job_id, every_move=True)
        seq: int | None = None
        version = 0
        try:
            while True:
                watcher.begin()
                end = version + MAX_HISTORY + 1  # a long history is read piece by piece
                events = await self._store.history(job_id, end)
                if not events:
                    raise _no_job(job_id)
                ended = events[-1].to_state in TERMINAL
                news = deque(event for event in events if event.version > version)
                del events  # who follows a job keeps what is still to be told, no more
                while news:
                    version = news[0].version
                    yield news.popleft()
                if version + 1 == end:
                    continue
                if ended:
                    return
                if seq is None:
                    seq = await self._store.seq_of(job_id)
                    if seq is None:
                        raise _no_job(job_id)
                await watcher.wait(seq, version)
        finally:
            self._watchers.leave(watcher)

    # -- dispatch --------------------------------------------------------------------------

    async def connect(self, info: WorkerInfo, inbox: Inbox) -> Link:
        """See ``DispatchApi.connect``."""
        if self._settings.dispatch is not Dispatch.LINKS:
            raise Conflict(
                "workers do not connect to this server: they hear of their jobs by Kafka; start"
                " jq-worker with kafka.dispatch and the redis:// address of the store"
            )
        admission.check_worker(info)
        info = dataclasses.replace(info, link=new_lease())
        lost = await self._worker_names.register(info)
        if lost:
            error = f"worker {info.id} was started anew"
            await self._apply([Transition.worker_lost(one.seq, one.lease, error) for one in lost])
        session = Session(info, inbox)
        known = {worker.info.id: worker.status for worker in await self._store.workers()}
        if known.get(info.id, WorkerStatus.ONLINE) is not WorkerStatus.ONLINE:
            session.open = False  # an operator drained it before it came back
            session.told = known[info.id]
        # What it brings along from another server, or from before a break, is part of its load.
        session.held.update(one.lease for one in await self._store.held(info.id))
        session.inherited = frozenset(session.held)
        replaced = self._scheduler.sessions.add(session)
        if replaced is not None:
            replaced.open = False
            self._scheduler.wake()  # it may know less than before, and a fallback has the rest
        self._unserved.workers_changed()
        return EngineLink(session, self._store, self._scheduler, self._reports.add, self._pulses)

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
        """See ``AttendanceApi.pulse``."""
        admission.check_worker_id(worker_id)
        return self._pulses.beat(
            worker_id, incarnation, owner, leases, begun, complete, progress, overrun
        )

    async def leave(self, worker_id: str, incarnation: int, *, owner: str = "") -> None:
        """See ``AttendanceApi.leave``."""
        admission.check_worker_id(worker_id)
        session = self._scheduler.sessions.get(worker_id)
        if session is not None and session.info.incarnation == incarnation:
            if not owner_allows(session.info.owner, owner):
                raise not_your_worker(worker_id)
            self._scheduler.dismiss(worker_id)
        await self._store.retire_worker(worker_id, incarnation, owner=owner)

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        """See ``AttendanceApi.missing_queues``."""
        admission.check_queue_names(names)
        return [name for name in names if not await self._store.stats(name)]

    def _lose(self, transitions: Sequence[Transition]) -> None:
        task: asyncio.Task[object] = asyncio.create_task(self._apply_quietly(transitions))
        self._losing.add(task)
        task.add_done_callback(self._losing.discard)

    async def _apply_quietly(self, transitions: Sequence[Transition]) -> None:
        try:
            await self._apply(transitions)
        except JobQueueError as error:
            _log.warning("lost leases could not be failed over: %s", error)

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
        answers: list[list[bool]] = []
        start = 0
        for call in calls:
            own = outcomes[start : start + len(call.reports)]
            answers.append([outcome.refusal is None for outcome in own])
            start += len(call.reports)
        return answers

    async def _apply(self, transitions: Sequence[Transition]) -> list[Outcome]:
        """Write transitions that no worker reported.

        In a task of its own: the write also brings jobs for others, which must be delivered
        although this caller gives up waiting.
        """
        task = asyncio.create_task(self._write(transitions))
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: asyncio.Task[list[Outcome]]) -> None:
        self._writing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.debug("a write failed: %s", task.exception())  # its caller was told

    async def _write(
        self,
        transitions: Sequence[Transition],
        freed: dict[Session, int] | None = None,
        ending: dict[Session, set[int]] | None = None,
        *,
        by_worker: bool = False,
    ) -> list[Outcome]:
        """The one way to the store's write path: claims ride along, everybody is told."""
        # Where writes run beside each other, the scheduler claims beside this one.
        plan = (
            Plan.nothing()
            if self._store.parallel
            else self._scheduler.plan(freed or {}, ending or {})
        )
        try:
            application = await self._store.apply(transitions, plan.claims)
        except BaseException:
            self._scheduler.release(plan)
            raise
        for session, count in (freed or {}).items():
            session.free += count
        self._scheduler.settle(plan, application.assigned)
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
                if session is not None:  # its lease ended without it
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


def _no_job(job_id: str) -> NotFound:
    return NotFound(f"job_id: there is no job {job_id}")
