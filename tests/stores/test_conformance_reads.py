"""Reads and removal: get, list, history, the event log, delete, prune."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import MAX_HISTORY, MAX_VERSION, SubmitStatus, Transition
from jobqueue.core.lifecycle import TERMINAL, State
from jobqueue.core.store import ANY_VERSION, BEGINNING, Claim, JobFilter, Rules
from tests.stores.driver import Driver, spec

P, A, R, D, F, X = State


async def test_an_unknown_job_is_none_and_has_no_history(driver: Driver):
    (unknown,) = new_job_ids(1)
    assert await driver.store.reads.get(unknown) is None
    assert await driver.store.reads.history(unknown) == []
    assert await driver.store.reads.seq_of(unknown) is None
    assert await driver.store.upkeep.delete_job(unknown) is None


async def test_a_job_is_found_by_its_id(driver: Driver):
    job = await driver.brought_to(R)
    assert await driver.store.reads.seq_of(job.id) == job.seq


# -- moved on --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
async def test_a_job_is_over_when_its_state_is_terminal(driver: Driver, state: State):
    job = await driver.brought_to(state)
    over = [job.seq] if state in TERMINAL else []
    assert await driver.store.reads.moved_on({job.seq: ANY_VERSION}) == over


@pytest.mark.parametrize("state", State)
async def test_a_job_has_moved_on_when_its_version_is_another(driver: Driver, state: State):
    """The version of its latest event: who follows its history has seen that one."""
    job = await driver.brought_to(state)
    latest = (await driver.store.reads.history(job.id))[-1].version
    over = [job.seq] if state in TERMINAL else []
    assert await driver.store.reads.moved_on({job.seq: latest}) == over
    assert await driver.store.reads.moved_on({job.seq: latest + 1}) == [job.seq]


async def test_a_job_that_is_retried_is_not_over(driver: Driver):
    job = await driver.brought_to(X)
    await driver.do(Transition.retried_by_hand(job.seq))
    assert await driver.store.reads.moved_on({job.seq: ANY_VERSION}) == []
    assert await driver.store.reads.moved_on({job.seq: job.version}) == [job.seq]


async def test_a_job_that_is_gone_is_over(driver: Driver):
    job = await driver.brought_to(D)
    assert await driver.delete(job.id) is D
    (pending,) = await driver.results(spec())  # does not take its number
    assert await driver.store.reads.moved_on({job.seq: ANY_VERSION}) == [job.seq]
    assert await driver.store.reads.seq_of(pending.job_id) != job.seq


async def test_those_of_many_that_moved_on_are_told_at_once(driver: Driver):
    await driver.results(*(spec() for _ in range(200)))
    seqs = [job.seq for job in await driver.store.reads.list_jobs(JobFilter(limit=200))]
    await driver.apply(*(Transition.cancelled(seq) for seq in seqs[::10]))
    claimed = {one.seq for one in await driver.claim(50)}
    seen = {seq: 1 if n % 2 else ANY_VERSION for n, seq in enumerate(seqs)}
    moved = await driver.store.reads.moved_on(seen)
    watched = {seq for seq, version in seen.items() if version}
    assert sorted(moved) == sorted({*seqs[::10], *(claimed & watched)})
    assert await driver.store.reads.moved_on({}) == []


# -- list ----------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-032")
async def test_jobs_are_listed_newest_first_and_filtered(driver: Driver):
    await driver.queue("r")
    first = await driver.submit(type="a")
    second = await driver.submit(type="b", queue="r")
    third = await driver.submit(type="a", queue="r")
    await driver.claim(1, queues=["q"])

    async def listed(**wanted) -> list[str]:
        return [job.id for job in await driver.store.reads.list_jobs(JobFilter(**wanted))]

    assert await listed() == [third, second, first]
    assert await listed(queue="r") == [third, second]
    assert await listed(states=(A,)) == [first]
    assert await listed(states=(A, P)) == [third, second, first]
    assert await listed(type="a") == [third, first]
    assert await listed(queue="r", states=(P,), type="b") == [second]
    assert await listed(queue="nowhere") == []


@pytest.mark.req("jq:FR-032")
async def test_pages_neither_repeat_nor_skip(driver: Driver):
    results = await driver.results(*(spec(b"%d" % n) for n in range(25)))
    seen: list[str] = []
    before: int | None = None
    while page := await driver.store.reads.list_jobs(JobFilter(before_seq=before, limit=7)):
        assert len(page) <= 7
        seen += [job.id for job in page]
        before = page[-1].seq
        await driver.submit(b"newer jobs do not shift the pages")
    assert seen == [r.job_id for r in results][::-1]


async def test_a_filtered_page_is_full_while_there_is_more(driver: Driver):
    await driver.results(*(spec(type="even" if n % 2 == 0 else "odd") for n in range(20)))
    page = await driver.store.reads.list_jobs(JobFilter(type="odd", limit=10))
    assert len(page) == 10


@pytest.mark.parametrize("state", State)
async def test_a_listed_job_is_the_job_that_get_shows(driver: Driver, state: State):
    job = await driver.brought_to(state, type="t", labels={"a": "b"}, key="k", timeout=4.0)
    (listed,) = await driver.store.reads.list_jobs(JobFilter(states=(state,)))
    assert listed == job


# -- history and the event log -------------------------------------------------------------


@pytest.mark.req("jq:FR-011")
async def test_history_shows_every_transition_with_time_and_reason(driver: Driver):
    a = await driver.assigned(max_retries=0)
    driver.clock.advance(1.0)
    await driver.start(a)
    driver.clock.advance(1.0)
    await driver.fail(a, "boom")
    events = await driver.store.reads.history(a.id)
    assert [e.version for e in events] == [1, 2, 3, 4, 5]
    assert [e.to_state for e in events] == [P, A, R, F, X]
    assert [e.from_state for e in events] == [None, P, A, R, F]
    now = driver.clock.now()
    assert [e.at for e in events] == [pytest.approx(now + d) for d in (-2, -2, -1, 0, 0)]
    assert all(e.reason and e.queue == "q" and e.job_id == a.id for e in events)


async def test_a_long_history_is_read_piece_by_piece(driver: Driver):
    a = await driver.assigned()
    for _ in range(MAX_HISTORY // 3 + 1):
        application = await driver.store.jobs.apply(
            [Transition.handed_back(a.seq, a.lease)], [Claim(("q",), ["w"])]
        )
        (a,) = application.assigned
    last = (await driver.job(a.id)).version
    assert last > MAX_HISTORY
    newest = await driver.store.reads.history(a.id)
    assert [e.version for e in newest] == list(range(last - MAX_HISTORY + 1, last + 1))
    first = await driver.store.reads.history(a.id, newest[0].version)
    assert [e.version for e in first] == list(range(1, newest[0].version))
    assert [e.version for e in await driver.store.reads.history(a.id, 4)] == [1, 2, 3]
    assert await driver.store.reads.history(a.id, 1) == []
    assert await driver.store.reads.history(a.id, MAX_VERSION) == newest


async def test_a_cancel_request_writes_no_event(driver: Driver):
    a = await driver.running()
    before = await driver.all_events()
    await driver.store.jobs.request_cancel(a.seq)
    assert await driver.all_events() == before


async def test_the_log_holds_every_event_once_in_the_order_of_its_job(driver: Driver):
    first = await driver.submit(b"1")
    second = await driver.submit(b"2")
    a = await driver.claim_one()
    await driver.start(a)
    await driver.fail(a, retry_after=0.0)
    b = await driver.claim_one()
    await driver.succeed(b)
    await driver.after(1.0)
    log = await driver.store.stream.events_after(BEGINNING, 1_000)
    # Jobs may come in any order within a page, but each job's events come in theirs.
    assert sorted((e.job_id, e.version) for _, e in log) == sorted(
        [
            (first, 1),
            (second, 1),
            (first, 2),
            (first, 3),
            (first, 4),
            (second, 2),
            (second, 3),
            (second, 4),
            (first, 5),
        ]
    )
    positions = [position for position, _ in log]
    assert len(set(positions)) == len(positions)
    assert BEGINNING not in positions
    for job_id in (first, second):
        assert [e for _, e in log if e.job_id == job_id] == await driver.store.reads.history(job_id)


@pytest.mark.parametrize("page", [1, 2, 7])
async def test_the_log_can_be_read_in_pages_while_it_grows(driver: Driver, page: int):
    await driver.results(*(spec() for _ in range(10)))
    seen: list[tuple[str, int]] = []
    position = BEGINNING
    claimed = False
    while found := await driver.store.stream.events_after(position, page):
        assert len(found) <= page
        seen += [(e.job_id, e.version) for _, e in found]
        position = found[-1][0]
        if not claimed:
            claimed = len(await driver.claim(3)) == 3
    assert len(seen) == len(set(seen)) == 13
    assert await driver.store.stream.events_after(position, 10) == []


async def test_a_reader_misses_nothing_when_the_newest_job_is_deleted(driver: Driver):
    """A place in the log is never given to another event."""
    job = await driver.brought_to(D)
    position = (await driver.store.stream.events_after(BEGINNING, 100))[-1][0]
    await driver.delete(job.id)
    following = await driver.submit()
    found = await driver.store.stream.events_after(position, 100)
    assert [(event.job_id, event.version) for _, event in found] == [(following, 1)]


async def test_a_deleted_jobs_number_is_not_given_to_another(driver: Driver):
    job = await driver.brought_to(D)
    await driver.delete(job.id)
    assert (await driver.brought_to(P)).seq > job.seq


# -- removal -------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-035")
@pytest.mark.parametrize("state", [D, X])
async def test_a_finished_job_can_be_deleted_with_history_and_key(driver: Driver, state: State):
    job = await driver.brought_to(state, payload=b"p", key="k")
    assert await driver.delete(job.id) is state
    assert await driver.store.reads.get(job.id) is None
    assert await driver.store.reads.history(job.id) == []
    assert await driver.store.reads.list_jobs(JobFilter()) == []
    assert await driver.all_events() == []
    assert (await driver.stats()).depth.get(state, 0) == 0
    (outcome,) = await driver.apply(Transition.retried_by_hand(job.seq))
    assert not outcome.applied
    assert await driver.submit(b"something else", key="k") != job.id


@pytest.mark.parametrize("state", [P, A, R, F])
async def test_an_unfinished_job_is_not_deleted(driver: Driver, state: State):
    job = await driver.brought_to(state)
    assert await driver.store.upkeep.delete_job(job.id) is state
    assert await driver.job(job.id) == job


async def test_deleting_a_job_does_not_free_the_key_of_its_successor(open_driver):
    driver: Driver = await open_driver(Rules(key_ttl=10.0))
    old = await driver.brought_to(D, payload=b"p", key="k")
    driver.clock.advance(11.0)
    successor = await driver.submit(b"p", key="k")
    await driver.delete(old.id)
    (again,) = await driver.results(spec(b"p", key="k"))
    assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, successor)


async def test_pruning_removes_old_done_jobs_only(driver: Driver):
    old = await driver.brought_to(D, payload=b"old")
    dead = await driver.brought_to(X, payload=b"dead")
    failed = await driver.brought_to(F, payload=b"failed")
    driver.clock.advance(100.0)
    young = await driver.brought_to(D, payload=b"young")
    assert await driver.prune(driver.clock.now() - 50.0) == 1
    assert await driver.store.reads.get(old.id) is None
    assert await driver.store.reads.history(old.id) == []
    for job in (dead, failed, young):
        assert await driver.store.reads.get(job.id) is not None
    assert await driver.prune(driver.clock.now() - 50.0) == 0


async def test_pruning_stops_at_its_limit(driver: Driver):
    for n in range(5):
        await driver.brought_to(D, payload=b"%d" % n)
    driver.clock.advance(1.0)
    now = driver.clock.now()
    assert [await driver.prune(now, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert (await driver.stats()).depth.get(D, 0) == 0


async def test_pruning_looks_at_the_queues_that_are_meant(driver: Driver):
    for name in ("a", "b", "c"):
        await driver.queue(name)
    jobs: dict[str, list[str]] = {}
    for name in ("a", "b", "c", "a", "b", "c"):
        job = await driver.brought_to(D, queue=name)
        jobs.setdefault(name, []).append(job.id)
        driver.clock.advance(10.0)
    now = driver.clock.now()

    async def left(name: str) -> int:
        return sum([await driver.store.reads.get(job_id) is not None for job_id in jobs[name]])

    # The older one of b is not looked at, and those of a, which lie before, do not count.
    only: dict[str, Any] = {"queues": ["b"], "others": False}
    assert await driver.prune(now, limit=1, completed_after=now - 30.0, **only) == 1
    assert [await left(name) for name in ("a", "b", "c")] == [2, 1, 2]
    assert await driver.prune(now, limit=2, queues=["a", "b"]) == 2
    assert [await left(name) for name in ("a", "b", "c")] == [2, 1, 0]
    assert await driver.prune(now, **only) == 1
    assert await driver.prune(now, queues=["nowhere"], others=False) == 0
    assert await driver.prune(now, queues=["nowhere"]) == 2


async def test_a_job_that_changed_since_is_not_deleted_at_a_version(driver: Driver):
    job = await driver.brought_to(X)
    assert await driver.store.upkeep.delete_job(job.id, version=job.version - 1) is X
    assert await driver.store.reads.get(job.id) is not None
    driver.removed.add(job.id)
    assert await driver.store.upkeep.delete_job(job.id, version=job.version) is X
    assert await driver.store.reads.get(job.id) is None


async def test_the_key_of_a_pruned_job_still_answers_its_id(driver: Driver):
    job = await driver.brought_to(D, payload=b"p", key="k")
    driver.clock.advance(1.0)
    assert await driver.prune(driver.clock.now()) == 1
    (again,) = await driver.results(spec(b"p", key="k"))
    assert (again.status, again.job_id) == (SubmitStatus.DUPLICATE, job.id)
    driver.clock.advance(driver.rules.key_ttl)
    assert await driver.submit(b"p", key="k") != job.id
