"""Redis gone, paused, full, forgetful: calls are bounded, and it is found again by itself."""

from __future__ import annotations

import asyncio
import random
import signal
from urllib.parse import urlsplit

import httpx
import pytest

from jobqueue.config import load
from jobqueue.core.errors import JobQueueError, NotFound, OutcomeUnknown, Unavailable
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import BEGINNING, Change, Claim, JobFilter, StoreAway
from jobqueue.server.process import ServerProcess
from jobqueue.stores.redis.store import RedisStore
from tests import patience
from tests.history.checker import Evidence, assert_kept
from tests.stores.driver import accept, new, spec, worker
from tests.stores.redis.conftest import DURABLE, Victim
from tests.stores.redis.proxy import Proxy

BOUND = 30.0  # generous: patience is half a second, the machine may be busy


async def test_a_redis_that_is_not_there_is_said_at_once(own_redis):
    victim = Victim(own_redis())
    victim.stop()
    store = RedisStore(victim.url, patience=0.5)
    with pytest.raises(Unavailable, match="Redis"):
        await store.open()
    await store.close()
    victim.start()
    await store.open()
    await store.ping()
    await store.close()
    await store.close()


async def test_a_closed_store_takes_no_calls(redis_url):
    store = RedisStore(redis_url)
    claim = store.jobs.claim([Claim(("q",), ["w"])])
    for call in (store.jobs.submit(new(spec())), store.reads.get("x"), store.ping(), claim):
        with pytest.raises(Unavailable, match="not open"):
            await call
    with pytest.raises(Unavailable, match="not open"):
        store.workers.pulse("w", 1, [])


async def test_while_it_is_gone_nothing_is_accepted_and_afterwards_all_goes_on(
    own_redis, open_store
):
    victim = Victim(own_redis(DURABLE))
    store = await open_store(victim.url, patience=0.5)
    before = await accept(store, 3)
    await store.workers.register(worker())
    victim.stop()
    await asyncio.sleep(0.05)  # the loop hears that its connections are closed
    async with patience.timeout(BOUND):
        with pytest.raises(Unavailable):  # not: unknown. Nothing was sent.
            await store.jobs.submit(new(spec()))
        with pytest.raises(Unavailable):
            await store.jobs.claim([Claim(("q",), ["w"])])
        with pytest.raises(Unavailable):
            await asyncio.to_thread(store.workers.pulse, "w", 1, [])
        with pytest.raises(Unavailable):
            await store.ping()
    victim.start()
    await store.ping()
    assert {job.id for job in await store.reads.list_jobs(JobFilter())} == set(before)
    assert len(await store.jobs.claim([Claim(("q",), ["w"] * 5)])) == 3
    assert (await asyncio.to_thread(store.workers.pulse, "w", 1, [])).known


async def test_who_comes_after_a_call_that_waited_in_vain_does_not_wait(own_redis, open_store):
    """With a patience of an hour a call that waits would outlast this test."""
    victim = Victim(own_redis(DURABLE))
    store = await open_store(victim.url, patience=0.5)
    await accept(store)
    victim.signal(signal.SIGSTOP)  # its port is open: connecting tells nothing
    try:
        with pytest.raises(OutcomeUnknown):
            await store.jobs.submit(new(spec()))
        store._runner._patience = 3600.0
        for _ in range(3):
            calls = [store.jobs.submit(new(spec())) for _ in range(20)]  # more than there are lanes
            for refused in await asyncio.gather(*calls, return_exceptions=True):
                assert type(refused) is StoreAway  # not: unknown. Nothing was sent.
    finally:
        victim.signal(signal.SIGCONT)
    async with patience.timeout(BOUND):
        while True:
            try:
                await accept(store)
                break
            except StoreAway:
                await asyncio.sleep(0.05)
    (stats,) = await store.queues.stats("q")
    assert 2 <= stats.depth[State.PENDING] <= 3  # the first in doubt may have happened


async def test_a_server_answers_503_while_it_is_gone_and_loses_nothing(own_redis):
    victim = Victim(own_redis(DURABLE))
    told = {"db.url": victim.url, "http.port": "0", "grpc.port": "0"}
    server = ServerProcess(load(flags=told, environ={}).settings)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.http_url, timeout=BOUND) as http:
            body = {"queue": "default", "payload": {"n": 1}}
            answer = await http.post("/jobs", json=body)
            assert answer.status_code == 202, answer.text
            job_id = answer.json()["job_id"]
            victim.stop()
            answer = await http.post("/jobs", json=body)
            assert answer.status_code == 503, answer.text
            victim.start()
            async with patience.timeout(BOUND):
                while (answer := await http.get(f"/jobs/{job_id}")).status_code != 200:
                    await asyncio.sleep(0.05)
            assert answer.json()["status"] == "PENDING"
            answer = await http.post("/jobs", json=body)
            assert answer.status_code == 202, answer.text
    finally:
        await server.stop()


async def test_a_paused_redis_answers_late_or_unknown_and_does_things_once(own_redis, open_store):
    victim = Victim(own_redis(DURABLE))
    store = await open_store(victim.url, patience=0.5)
    await accept(store)
    victim.signal(signal.SIGSTOP)
    try:
        jobs = new(spec(b"in doubt"))
        async with patience.timeout(BOUND):
            with pytest.raises(OutcomeUnknown):
                await store.jobs.submit(jobs)
    finally:
        victim.signal(signal.SIGCONT)
    # Every try has arrived by now, and was counted once.
    (later,) = await accept(store)
    ids = [job.id for job in await store.reads.list_jobs(JobFilter())]
    assert ids.count(jobs[0].id) <= 1
    assert later in ids
    (stats,) = await store.queues.stats("q")
    assert stats.depth[State.PENDING] == len(ids)


async def test_a_pause_shorter_than_the_patience_goes_unnoticed(own_redis, open_store):
    victim = Victim(own_redis(DURABLE))
    store = await open_store(victim.url, patience=60.0)
    victim.signal(signal.SIGSTOP)
    call = asyncio.create_task(accept(store))
    await asyncio.sleep(0.2)
    victim.signal(signal.SIGCONT)
    assert len(await call) == 1
    assert len(await store.reads.list_jobs(JobFilter())) == 1


async def test_a_ping_with_little_patience_waits_for_a_slow_answer(own_redis, open_store):
    """Patience is for a server that is away. One that is slow would lose its connections."""
    victim = Victim(own_redis())
    store = await open_store(victim.url, patience=60.0)
    await store.ping(0.01)
    victim.signal(signal.SIGSTOP)
    try:
        ping = asyncio.create_task(store.ping(0.01))
        await asyncio.wait([ping], timeout=0.3)
        assert not ping.done()
    finally:
        victim.signal(signal.SIGCONT)
    async with patience.timeout(BOUND):
        await ping


async def test_flushed_scripts_are_loaded_again(open_store, client):
    store = await open_store()
    await store.workers.register(worker())
    for _ in range(3):
        await client.script_flush()
        (job_id,) = await accept(store)
        await client.script_flush()
        (got,) = await store.jobs.claim([Claim(("q",), ["w"])])
        await client.script_flush()
        assert store.workers.pulse("w", 1, [got.lease]).lost == []
        await client.script_flush()
        await store.jobs.apply([Transition.succeeded(got.seq, got.lease, None)])
        assert (await store.reads.get(job_id)).state is State.DONE


async def test_connections_are_killed_under_load(own_redis, open_store):
    """Whoever talks loses the line, again and again: every call gets its true answer."""
    victim = Victim(own_redis())
    store = await open_store(victim.url, patience=60.0)
    total = 400
    accepted: set[str] = set()
    done: set[str] = set()

    async def kill() -> None:
        at = 0
        while len(done) < total:
            if len(accepted) + len(done) >= at + 10:  # however slow the machine: it goes on
                at = len(accepted) + len(done)
                await asyncio.to_thread(victim.send, "CLIENT", "KILL", "TYPE", "normal")
            await asyncio.sleep(random.uniform(0, 0.01))

    async def produce() -> None:
        for _ in range(total // 20):
            accepted.update(await accept(store, 10))

    async def work(name: str) -> None:
        while len(done) < total:
            got = await store.jobs.claim([Claim(("q",), [name] * 5)])
            moves = [Transition.succeeded(one.seq, one.lease, one.id.encode()) for one in got]
            for one, outcome in zip(got, (await store.jobs.apply(moves)).outcomes, strict=True):
                assert outcome.applied, outcome
                assert one.id not in done
                done.add(one.id)
            await asyncio.sleep(0)

    async with patience.timeout(55), asyncio.TaskGroup() as group:
        for part in (produce(), produce(), work("w1"), work("w2"), kill()):
            group.create_task(part)
    jobs = {job.id: job for job in await store.reads.list_jobs(JobFilter(limit=1_000))}
    assert accepted == done == set(jobs)
    events = [event for _, event in await store.stream.events_after(BEGINNING, 100_000)]
    assert_kept(Evidence(events=events, jobs=jobs, accepted=accepted, removed=set()))
    assert await store.workers.held() == []


async def test_the_listener_comes_back(own_redis, open_store):
    victim = Victim(own_redis())
    one, two = await open_store(victim.url), await open_store(victim.url)
    heard: list[Change] = []
    two.on_change(heard.append)

    async def hears(what: Change) -> None:
        async with patience.timeout(BOUND):
            while what not in heard:
                await asyncio.sleep(0.01)
        heard.clear()

    everything = ~Change(0)
    for _ in range(3):
        victim.send("CLIENT", "KILL", "TYPE", "pubsub")
        await hears(everything)  # whatever it missed
        await accept(one)
        await hears(Change.WORK)


async def test_a_full_redis_refuses_and_takes_again(own_redis, open_store):
    victim = Victim(own_redis(DURABLE))
    store = await open_store(victim.url)
    (kept,) = await accept(store)
    victim.send("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Unavailable, match=r"OOM|memory"):
        await store.jobs.submit(new(spec()))
    with pytest.raises(Unavailable, match=r"OOM|memory"):
        await store.jobs.claim([Claim(("q",), ["w"])])
    with pytest.raises(Unavailable):
        await store.ping()
    assert (await store.reads.get(kept)).state is State.PENDING
    victim.send("CONFIG", "SET", "maxmemory", "0")
    assert [one.id for one in await store.jobs.claim([Claim(("q",), ["w"])])] == [kept]


@pytest.mark.req("sch:API")
async def test_a_full_redis_lets_what_was_accepted_end(own_redis, open_store):
    """Somebody leads, workers stay alive, what is done is reported and published: then what is old
    can be removed, and there is room."""
    victim = Victim(own_redis())
    store = await open_store(victim.url)
    await store.workers.register(worker())
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    ids = await accept(store, 3)
    first, second, third = await store.jobs.claim([Claim(("q",), ["w"] * 3)])
    await store.jobs.apply(
        [Transition.started(one.seq, one.lease) for one in (first, second, third)]
    )
    victim.send("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Unavailable, match=r"OOM|memory"):
        await store.jobs.submit(new(spec()))
    assert await store.leadership.lead(1, 60.0) == term
    assert (await asyncio.to_thread(store.workers.pulse, "w", 1, [third.lease])).known
    moves = [
        Transition.succeeded(first.seq, first.lease, b"r" * 1_000),
        Transition.failed(second.seq, second.lease, "boom", retryable=False),
    ]
    assert [one.refusal for one in (await store.jobs.apply(moves)).outcomes] == [None, None]
    assert await store.jobs.request_cancel(third.seq)
    await store.upkeep.due(10)
    await store.stream.move_mark(
        (await store.stream.changes_after(BEGINNING, 100, 1 << 20)).position, term
    )
    assert await store.upkeep.prune_done(float("inf"), 10, term) == 1
    assert await store.workers.retire_silent(60.0, term) == []
    victim.send("CONFIG", "SET", "maxmemory", "0")
    states = [job and job.state for job in [await store.reads.get(one) for one in ids]]
    assert states == [None, State.DEAD_LETTERED, State.RUNNING]


async def test_a_full_redis_lets_jobs_be_deleted(own_redis, open_store):
    """That makes room, and all that a person can do without its settings."""
    victim = Victim(own_redis())
    store = await open_store(victim.url)
    term = await store.leadership.lead(1, 60.0)
    await store.stream.begin(term)
    ids = await accept(store, 2)
    for got in await store.jobs.claim([Claim(("q",), ["w", "w"])]):
        await store.jobs.apply([Transition.succeeded(got.seq, got.lease, None)])
    await store.stream.move_mark(
        (await store.stream.changes_after(BEGINNING, 100, 1 << 20)).position, term
    )
    victim.send("CONFIG", "SET", "maxmemory", "1")
    assert await store.upkeep.delete_job(ids[0]) is State.DONE
    assert await store.upkeep.prune_done(float("inf"), 10, term) == 1
    victim.send("CONFIG", "SET", "maxmemory", "0")
    assert [await store.reads.get(one) for one in ids] == [None, None]


async def test_a_wrong_password_is_said_and_not_shown(own_redis):
    victim = Victim(own_redis())
    store = RedisStore(f"redis://:hush@{victim.place}")
    with pytest.raises(Unavailable) as caught:
        await store.open()
    assert "hush" not in caught.value.message
    await store.close()


async def test_an_old_redis_is_refused(redis_url, monkeypatch):
    store = RedisStore(redis_url)
    command = store._runner.command

    async def old(name, *words):
        answer = await command(name, *words)
        return b"redis_version:6.2.14\r\n" if words[0] == "INFO" else answer

    monkeypatch.setattr(store._runner, "command", old)
    with pytest.raises(Unavailable, match="has version 6; version 7 or newer is needed"):
        await store.open()
    await store.close()


async def test_a_store_may_be_required_to_exist(redis_url, open_store):
    store = RedisStore(redis_url, prefix="{elsewhere}:", create=False)
    with pytest.raises(NotFound, match="no queues in Redis"):
        await store.open()
    await open_store(prefix="{elsewhere}:")
    await store.open()
    await store.close()


async def test_thousands_of_slots_of_one_worker_are_filled(open_store):
    store = await open_store()
    await accept(store, 9_000)
    got = await store.jobs.claim([Claim(("q",), ["w"] * 4_500)])
    asked = [Transition.succeeded(one.seq, one.lease, None) for one in got]
    application = await store.jobs.apply(asked, [Claim(("q",), ["w"] * 4_500)])
    assert sum(outcome.applied for outcome in application.outcomes) == 4_500
    assert len({one.id for one in [*got, *application.assigned]}) == 9_000
    assert len(await store.workers.held("w")) == 4_500


async def test_a_defect_in_the_data_is_no_outage(open_store, client):
    store = await open_store()
    await client.set("{jq}:ready_types:q", "not a sorted set")
    with pytest.raises(JobQueueError, match="WRONGTYPE") as caught:
        await store.jobs.claim([Claim(("q",), ["w"])])
    assert caught.value.code == "INTERNAL"


async def test_after_a_fail_over_the_new_server_is_found_although_the_old_one_answers(
    own_redis, open_store
):
    """The old one is a replica now: its connections stay, and refuse whatever is written."""
    old, new_one = Victim(own_redis()), Victim(own_redis())
    proxy = Proxy(old.url)
    await proxy.open()
    try:
        store = await open_store(proxy.url, patience=0.5)
        await store.workers.register(worker())
        assert (await asyncio.to_thread(store.workers.pulse, "w", 1, [])).known
        await open_store(new_one.url)  # which has the queue
        new_one.send("CONFIG", "SET", "requirepass", urlsplit(old.url).password or "")
        old.send("REPLICAOF", "127.0.0.1", "1")
        proxy.lead_to(new_one.url)
        with pytest.raises(Unavailable, match="read only"):
            await accept(store)
        with pytest.raises(Unavailable, match="read only"):
            await asyncio.to_thread(store.workers.pulse, "w", 1, [])
        assert await accept(store)
        assert not (await asyncio.to_thread(store.workers.pulse, "w", 1, [])).known
        await store.close()
    finally:
        await proxy.close()
