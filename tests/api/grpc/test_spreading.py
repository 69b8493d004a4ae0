"""Workers and clients balancer over servers, and leave one that is slow."""

from __future__ import annotations

import asyncio
import itertools
import math
import random

import pytest

from jobqueue.api.grpc.remote import GrpcBackend, servers
from jobqueue.api.grpc.remote.servers import Balancer, LoadSample
from jobqueue.core.job import JobSpec, Transition
from jobqueue.core.lifecycle import State
from tests import patience
from tests.api.grpc.inbox import RecordingInbox

QUICK, SLOW = 0.01, 1.0


def choices(answers, current=0, balancer=None):
    """What it chooses at each answer, of servers that have one user each."""
    balancer = balancer or Balancer(len(answers[0]))
    for seconds in answers:
        current = balancer.choose(current, [LoadSample(one, 1) for one in seconds])
        yield current


def test_a_slow_server_is_left_when_it_was_slow_three_times_in_a_row():
    assert list(choices([(SLOW, QUICK)] * 3)) == [0, 0, 1]
    now_and_then = [(SLOW, QUICK), (SLOW, QUICK), (QUICK, QUICK)] * 5
    assert set(choices(now_and_then)) == {0}


def test_a_server_that_does_not_answer_is_left_and_one_that_is_gone_is_not_chosen():
    assert list(choices([(math.inf, QUICK)] * 3))[-1] == 1
    balancer = Balancer(2)
    for _ in range(5):
        assert balancer.choose(0, [LoadSample(math.inf, 9), None]) == 0


def test_a_server_that_is_gone_is_left_at_once():
    assert Balancer(3).choose(0, [None, LoadSample(QUICK, 4), LoadSample(QUICK, 2)]) == 2
    assert Balancer(2).choose(0, [None, None]) == 0


def test_a_server_that_does_not_say_how_many_it_has_gets_nobody_for_that():
    """It is older. Nor is it left for that."""
    assert {
        Balancer(2).choose(0, [LoadSample(QUICK, 9), LoadSample(QUICK, None)]) for _ in range(9)
    } == {0}
    assert {
        Balancer(2).choose(0, [LoadSample(QUICK, None), LoadSample(QUICK, 0)]) for _ in range(9)
    } == {0}
    assert Balancer(2).choose(0, [None, LoadSample(QUICK, None)]) == 1


def test_servers_that_are_all_as_slow_are_kept():
    assert set(choices([(SLOW, SLOW * 2)] * 9)) == {0}
    assert set(choices([(QUICK * 9, QUICK)] * 9)) == {0}, "nobody notices such a difference"


def test_a_server_that_is_still_slow_gets_nobody_back():
    balancer = Balancer(2)
    for _ in range(9):
        current = balancer.choose(1, [LoadSample(SLOW, 0), LoadSample(QUICK, 10)])
    assert current == 1
    random.seed(1)
    found = {balancer.choose(1, [LoadSample(QUICK, 0), LoadSample(QUICK, 10)]) for _ in range(9)}
    assert found == {0, 1}, "it is quick again, and too many are here"


@pytest.mark.parametrize(("workers", "count"), [(10, 2), (12, 3), (40, 4), (100, 3)])
def test_after_a_restart_everybody_finds_a_fair_share(workers, count):
    """One server is empty, and each worker compares once in four seconds, at a time of its own."""
    random.seed(workers)
    places = [1 + n % (count - 1) for n in range(workers)]
    balancers = [Balancer(count) for _ in places]
    for _, worker in itertools.product(range(7), random.sample(range(workers), workers)):
        seen = [LoadSample(QUICK, places.count(place)) for place in range(count)]
        places[worker] = balancers[worker].choose(places[worker], seen)
    even = workers / count
    assert all(abs(places.count(place) - even) <= max(1, even * 0.2) for place in range(count))


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(servers, "_COMPARE_EVERY", 0.1)


def client(*ports):
    backend = GrpcBackend(
        ",".join(f"127.0.0.1:{port}" for port in ports), timeout=patience.stretched(5)
    )
    backend._servers._current = 0
    return backend


async def until(condition):
    async with patience.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.req("jq:NFR-008", "jq:FR-021")
async def test_workers_move_in_good_order_and_keep_what_they_hold(engine, serve, worker_info, soon):
    """All of them begin at one server; the others are there as well."""
    (one, first), (two, second) = await serve(engine), await serve(engine)
    backends = [client(first, second) for _ in range(4)]
    held = []
    for number, backend in enumerate(backends):
        inbox = RecordingInbox()
        link = await backend.connect(worker_info(id=f"w{number}", concurrency=1), inbox)
        await engine.submit([JobSpec(payload=b"x")])
        link.grant(1)
        await inbox.until(lambda inbox: inbox.jobs)
        inbox.listed = [inbox.jobs[0].lease]
        held.append((link, inbox.jobs[0]))
    names = [f"w{number}" for number in range(4)]
    await until(lambda: [sum(map(face.connected, names)) for face in (one, two)] == [2, 2])
    for link, job in held:
        assert await link.report([Transition.succeeded(job.seq, job.lease, b"ok")]) == [True]
        assert (await engine.get(job.id)).attempt == 1
    for backend in backends:
        await backend.stop()


class SlowStore:
    """An engine whose store takes its time to answer."""

    def __init__(self, engine):
        self._engine = engine

    async def health(self):
        await asyncio.sleep(0.5)
        return await self._engine.health()

    def __getattr__(self, name):
        return getattr(self._engine, name)


@pytest.mark.req("jq:NFR-008")
async def test_a_worker_and_a_client_leave_a_server_that_is_slow(engine, serve, worker_info, soon):
    (one, first), (two, second) = await serve(SlowStore(engine)), await serve(engine)
    backend = client(first, second)
    await backend.connect(worker_info(id="w"), RecordingInbox())
    await backend.submit([JobSpec(payload=b"x")])
    assert one.connected("w")
    await until(lambda: two.connected("w") and not one.connected("w"))
    (result,) = await backend.submit([JobSpec(payload=b"y")])
    assert (await backend.get(result.unwrap())).state is State.PENDING
    await backend.stop()
