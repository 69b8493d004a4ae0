"""Leaders that die or sleep, workers that die, a Redis and a Kafka that go away."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobqueue.core.dispatch import HintKind
from jobqueue.core.job import JobSpec
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.store import Term
from jobqueue.server.process import ServerProcess
from jobqueue.stores.redis.store import RedisStore
from tests.history.checker import assert_kept
from tests.services.plugin import OwnKafka, OwnRedis
from tests.services.topics import Topics
from tests.stores.redis.proxy import Proxy
from tests.streaming.programs import Programs, line
from tests.streaming.system import System, ended, spoken, until
from tests.streaming.test_flow import submit

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.timeout(180)]
LEADS = "this server leads"
STORY = ["PENDING", "ASSIGNED", "RUNNING", "DONE"]

Make = Callable[..., Programs]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Make]:
    made: list[Programs] = []

    def make(redis_url: str, kafka: Topics, **more: str) -> Programs:
        made.append(Programs(tmp_path, redis_url, kafka, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def one_assignment_for_each_attempt(found: Programs, events: list) -> None:
    given = Counter((one.job_id, one.attempt) for one in events if one.to_state is State.ASSIGNED)
    assert set(given.values()) == {1}
    assert {job_id for job_id, _ in given} == set(found.accepted)


@pytest.mark.req("sch:LEADER", "sch:PARTITION")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
async def test_a_standby_takes_over_from_a_leader_that_is_gone(
    programs: Make, redis_url: str, kafka: Topics, end: signal.Signals
) -> None:
    """What the old one wanted to assign counts no more. How soon: tests/bench."""
    run = programs(redis_url, kafka)
    leader = run.server("scheduler")
    workers = [run.worker(name) for name in ("one", "two")]
    await line(leader, LEADS)
    standby = run.server("scheduler")
    run.api()
    for program in (standby, *workers):
        await line(program, "ready")
    async with run.client() as http:
        await run.submit(http, 20)
        await run.all_are(http, "SUCCESS")
        more = asyncio.create_task(run.submit(http, 60))
        await asyncio.sleep(0.1)  # in the middle of it
        leader.signal(end)
        await line(standby, LEADS)
        await more
        await run.all_are(http, "SUCCESS")
        if end == signal.SIGSTOP:
            leader.signal(signal.SIGCONT)
            await run.submit(http, 20)
            await run.all_are(http, "SUCCESS")
            assert [one for one in leader.lines if one["message"] == LEADS] == [
                leader.line(LEADS)
            ]  # it has not led again
    evidence = await run.evidence()
    assert_kept(evidence)
    one_assignment_for_each_attempt(run, list(evidence.events))


@pytest.mark.req("sch:LEADER", "sch:PARTITION")
async def test_a_leader_that_does_not_know_that_it_is_none_assigns_nothing(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was stopped between a look at its clock and its claim."""
    api = await system.server("api")
    leader = await system.server("scheduler")
    worker = await system.worker()
    (first,) = await submit(api)
    await ended(api.backend, first)
    roster = leader.backend._roster  # type: ignore[attr-defined]
    sweeper = roster._sweeper
    old = sweeper.term
    store = RedisStore(system.redis_url)
    await store.open()
    try:
        still = SimpleNamespace(term=old, term_ended=sweeper.term_ended)  # its clock stands still
        monkeypatch.setattr(roster, "_sweeper", still)
        monkeypatch.setattr(leader.backend.store.leadership, "lead", _nobody)  # type: ignore[attr-defined]

        async def another() -> Term | None:  # unless a renewal is under way
            await store.leadership.resign(old)
            return await store.leadership.lead(12345, 60.0)

        new: Term = await until(another, "another one leads")
        refused: list[object] = []
        real = leader.backend.store.jobs.claim  # type: ignore[attr-defined]

        async def claim(claims: object, *, term: Term | None = None, **more: bool) -> object:
            assert term == old
            try:
                return await real(claims, term=term, **more)
            except BaseException as error:
                refused.append(error)
                raise

        monkeypatch.setattr(leader.backend.store.jobs, "claim", claim)  # type: ignore[attr-defined]
        (second,) = await submit(api)
        await until(lambda: _len(refused), "a claim was refused")
        assert (await api.backend.get(second)).state is State.PENDING
        assert worker.runtime.running == 0
        monkeypatch.undo()
        await store.leadership.resign(new)
        await ended(api.backend, second)
        events = await api.backend.history(second)
        assert [one.to_state.name for one in events] == STORY
    finally:
        await store.close()


async def _nobody(holder: int, ttl: float, name: str = "") -> Term | None:
    return None


async def _len(found: list[object]) -> int:
    return len(found)


@pytest.mark.req("sch:PARTITION")
async def test_a_leader_that_is_cut_off_from_redis_leaves_it_to_the_standby(
    system: System,
) -> None:
    proxy = Proxy(system.redis_url)
    await proxy.open()
    try:
        api = await system.server("api")
        cut_off = await system.server("scheduler", **{"db.url": proxy.url})
        await until(lambda: _leads(cut_off), "it leads")
        standby = await system.server("scheduler")
        await system.worker()
        await ended(api.backend, *await submit(api, 3))
        await proxy.close()  # every line is cut, and none is accepted
        jobs = await submit(api, 10)
        await until(lambda: _leads(standby), "the standby leads")
        await ended(api.backend, *jobs)
        assert not await _leads(cut_off)
        await proxy.open()
        await until(lambda: _answers(cut_off), "it is back")
        more = await submit(api, 10)
        await ended(api.backend, *more)
        assert [await _leads(one) for one in (cut_off, standby)] == [False, True]
        for job_id in (*jobs, *more):
            events = await api.backend.history(job_id)
            assert [one.to_state.name for one in events] == STORY
        await cut_off.stop()
    finally:
        await proxy.close()


async def _answers(server: ServerProcess) -> bool:
    return (await server.backend.health()).ok


async def _leads(server: ServerProcess) -> bool:
    return server.backend._sweeper.term is not None  # type: ignore[attr-defined]


@pytest.mark.req("sch:WORKER")
async def test_the_jobs_of_a_worker_that_died_go_to_another(
    programs: Make, redis_url: str, kafka: Topics
) -> None:
    run = programs(redis_url, kafka)
    scheduler, dies = run.server("scheduler"), run.worker("dies")
    run.api()
    await line(scheduler, LEADS)
    await line(dies, "ready")
    async with run.client() as http:
        jobs = await run.submit(http, 4, "first-attempt-hangs")
        await run.all_are(http, "RUNNING", *jobs)
        dies.signal(signal.SIGKILL)
        run.worker("lives")
        await run.all_are(http, "SUCCESS")
        workers = {
            one["worker_id"]: one["status"]
            for one in (await http.get("/workers")).json()["workers"]
        }
    assert workers == {"dies": "DEAD", "lives": "ALIVE"}
    evidence = await run.evidence()
    assert_kept(evidence)
    lost = {one.job_id for one in evidence.events if one.reason is Reason.WORKER_LOST}
    assert lost == set(jobs)
    told = [one.hint for one in await asyncio.to_thread(spoken, kafka, "workers")]
    died = [one.worker_id for one in told if one.kind is HintKind.WORKER_DEAD]
    came = [one.worker_id for one in told if one.kind is HintKind.WORKER_REGISTERED]
    assert died == ["dies"]
    assert "lives" in came


@pytest.mark.req("sch:WORKER", "jq:FR-034")
async def test_a_job_that_kills_its_workers_is_named_and_its_neighbours_are_done(
    programs: Make, redis_url: str, kafka: Topics
) -> None:
    run = programs(redis_url, kafka, **{"queue.retry_base": "0.1", "worker.concurrency": "16"})
    scheduler = run.server("scheduler")
    run.api()
    async with run.client() as http:
        usual = {"max_retries": 3}
        healthy = await run.submit(http, 4, "healthy-async", payload={}, **usual)
        (fatal,) = await run.submit(http, 1, "fatal-async", payload={"how": "segv"}, **usual)
        await line(scheduler, LEADS)
        run.supervised_workers("one@default")
        await run.all_are(http, "SUCCESS", *healthy)
        await run.all_are(http, "FAILED", fatal)
    evidence = await run.evidence(dead_letters_allowed=True)
    assert_kept(evidence)
    ended = {job_id: (job.state, job.reason) for job_id, job in evidence.jobs.items()}
    assert ended == dict.fromkeys(healthy, (State.DONE, Reason.SUCCEEDED)) | {
        fatal: (State.DEAD_LETTERED, Reason.POISON)
    }


@pytest.mark.req("sch:API", "sch:AOF", "sch:PARTITION")
async def test_without_redis_nothing_is_accepted_and_nothing_is_lost(
    programs: Make, own_redis: OwnRedis, kafka: Topics
) -> None:
    redis = own_redis({"appendonly": "yes", "appendfsync": "always"})
    run = programs(redis.url, kafka)
    scheduler, worker = run.server("scheduler"), run.worker("w")
    run.api()
    await line(scheduler, LEADS)
    await line(worker, "ready")
    async with run.client() as http:
        running = await run.submit(http, 2, "half-a-second")
        await run.submit(http, 30)
        await asyncio.to_thread(redis.kill)
        refused = await http.post("/jobs", json={"type": "short", "payload": {"number": 1}})
        assert refused.status_code == 503, refused.text
        await asyncio.to_thread(redis.start)
        await run.all_are(http, "SUCCESS")
        assert set(running) <= set(run.accepted)
        await run.submit(http, 5)
        await run.all_are(http, "SUCCESS")
    evidence = await run.evidence()
    assert_kept(evidence)
    assert (worker.process.poll(), scheduler.process.poll()) == (None, None)


@pytest.mark.req("sch:API", "sch:TOPICS")
async def test_jobs_that_are_accepted_without_kafka_finish_and_are_told_of_later(
    programs: Make, redis_url: str, own_kafka: OwnKafka
) -> None:
    kafka = own_kafka()
    topics = Topics(kafka.bootstrap, "")
    run = programs(redis_url, topics)
    scheduler, worker = run.server("scheduler"), run.worker("w")
    run.api()
    await line(scheduler, LEADS)
    await line(worker, "ready")
    async with run.client() as http:
        await run.submit(http, 3)
        await run.all_are(http, "SUCCESS")
        await asyncio.to_thread(kafka.kill)
        await run.submit(http, 10)
        await run.all_are(http, "SUCCESS")  # found by the workers themselves
        await asyncio.to_thread(kafka.start)

        async def told() -> bool:
            events = Counter(
                one.event for one in await asyncio.to_thread(spoken, topics, "requests", "results")
            )
            wanted = Counter(JobCreated=13, JobStarted=13, JobCompleted=13)
            assert not events - wanted, events  # nothing twice: the producer is idempotent
            return events == wanted

        await until(told, "everything is in Kafka", within=60.0)
        await run.submit(http, 3)
        await run.all_are(http, "SUCCESS")
    assert_kept(await run.evidence())


class Nowhere:
    """A Kafka that is not there."""

    bootstrap = "127.0.0.1:1"

    def name(self, topic: str) -> str:
        return topic


@pytest.mark.req("sch:TOPICS")
async def test_without_kafka_workers_hear_of_their_jobs_from_redis(redis_url: str) -> None:
    """The heartbeat, which would find them, comes long after this test."""
    slow = {"worker.heartbeat_interval": "900", "worker.heartbeat_timeout": "3600"}
    system = System(redis_url, Nowhere())  # type: ignore[arg-type]
    try:
        scheduler = await system.server("scheduler", **slow)
        await system.worker(more={**slow, "worker.concurrency": "2"})
        api = await system.server("api", **slow)

        async def noticed() -> bool:
            parts = (await scheduler.backend.health()).components
            return any(part.name == "kafka" and not part.ok for part in parts)

        await until(noticed, "Kafka is away")
        specs = [JobSpec(payload=b"1", type="echo") for _ in range(12)]
        jobs = [one.unwrap() for one in await api.backend.submit(specs)]
        assert {one.state for one in await ended(api.backend, *jobs)} == {State.DONE}
    finally:
        await system.stop()
