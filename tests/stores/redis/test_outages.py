"""Redis flushed, slow, gone, unwilling: no advice, nothing else (jq:NFR-009)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from jobqueue.metrics import Metrics
from jobqueue.stores.redis.locks import RedisLocks
from tests import patience

AWAY = "dispatch goes on under PostgreSQL's row locks"
pytestmark = [pytest.mark.req("jq:NFR-009")]


def names(count: int = 1) -> list[str]:
    return [f"{uuid.uuid4()}:1" for _ in range(count)]


async def until(holds: Callable[[], bool], seconds: float = 15.0) -> None:
    async with patience.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


def sockets() -> int:
    """Open sockets of this process."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "jobqueue.redis"
    ]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest_asyncio.fixture
async def locks(victim, metrics, caplog) -> AsyncIterator[RedisLocks]:
    caplog.set_level(logging.INFO, "jobqueue.redis")
    # Ten times the default: these tests share their machine with others.
    made = RedisLocks(victim.url, observer=metrics, timeout=0.5)
    await made.open()
    assert made.health().ok
    assert said(caplog) == []  # it was not away before
    yield made
    await made.close()


async def test_gone_and_back(victim, locks, metrics, caplog):
    victim.stop()
    assert await locks.take(names(), 1) is None
    for _ in range(50):
        assert await locks.take(names(), 1) is None
    health = locks.health()
    assert (health.name, health.ok) == ("redis", False)
    assert AWAY in health.detail
    assert str(victim.port) in health.detail
    assert "jq_redis_up 0.0" in (await metrics.render())[0].decode()
    victim.start()
    await until(lambda: locks.health().ok)
    assert await locks.take(names(), 1) == [0]  # its script is loaded again
    text = (await metrics.render())[0].decode()
    assert "jq_redis_up 1.0" in text
    assert 'jq_redis_errors_total{error="connection"}' in text
    (warning, info) = said(caplog)  # one line when it goes, one when it is back
    assert warning[0] == "WARNING"
    assert AWAY in warning[1]
    assert info[0] == "INFO"
    assert "is back after" in info[1]


async def test_a_call_during_an_outage_does_not_wait(victim, locks):
    victim.signal(signal.SIGSTOP)
    began = time.monotonic()
    assert await locks.take(names(), 1) is None
    assert time.monotonic() - began >= 0.5  # the deadline: it hangs, it does not refuse
    limit = patience.Limit(1000 * 0.5 / 10)
    for _ in range(1000):
        assert await locks.take(names(), 1) is None
    assert not limit.over  # none of them waits for the deadline
    victim.signal(signal.SIGCONT)
    await until(lambda: locks.health().ok)


async def test_one_that_hangs_leaks_nothing(victim, locks, metrics):
    before = sockets()
    victim.signal(signal.SIGSTOP)
    answers = await asyncio.gather(*(locks.take(names(500), 500) for _ in range(20)))
    assert answers == [None] * 20
    # One task looks for it; what the probes open they close.
    assert [task.get_name() for task in asyncio.all_tasks()].count("jobqueue-redis-watch") == 1
    await until(lambda: _errors(metrics, "timeout") >= 22)
    assert sockets() <= before + 1
    victim.signal(signal.SIGCONT)
    await until(lambda: locks.health().ok)
    assert await locks.take(names(3), 3) == [0, 1, 2]


def _errors(metrics: Metrics, kind: str) -> float:
    value = metrics.registry.get_sample_value("jq_redis_errors_total", {"error": kind})
    return value or 0.0


async def test_no_connection_outlives_an_outage(victim, metrics):
    """Not even idle ones: behind the same name there may be another server afterwards."""
    before = sockets()
    locks = RedisLocks(victim.url, observer=metrics, timeout=0.5)
    await locks.open()
    await asyncio.gather(*(locks.take(names(), 1) for _ in range(4)))
    assert sockets() == before + 4
    victim.send("CONFIG", "SET", "maxmemory", "1")
    assert await locks.take(names(), 1) is None
    await until(lambda: sockets() <= before + 1)  # a probe may be on its way
    await until(lambda: _errors(metrics, "refused") >= 3)
    await until(lambda: sockets() == before)
    await locks.close()


async def test_closed_while_it_hangs(victim, locks):
    victim.signal(signal.SIGSTOP)
    call = asyncio.create_task(locks.take(names(), 1))
    await asyncio.sleep(0)
    await locks.close()
    assert await call is None
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "jobqueue-redis-watch"]


async def test_a_caller_that_gives_up_leaves_nothing(victim, locks):
    before = sockets()
    victim.signal(signal.SIGSTOP)
    call = asyncio.create_task(locks.take(names(), 1))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert locks.health().ok  # nobody knows better
    victim.signal(signal.SIGCONT)
    assert await locks.take(names(), 1) == [0]
    assert sockets() <= before


async def test_an_outage_is_noticed_although_nobody_asks(victim, metrics, monkeypatch, caplog):
    monkeypatch.setitem(RedisLocks.open.__globals__, "_QUIET", 0.05)
    locks = RedisLocks(victim.url, observer=metrics, timeout=0.5)
    await locks.open()
    victim.stop()
    await until(lambda: not locks.health().ok)
    victim.start()
    await until(lambda: locks.health().ok)
    await locks.close()
    assert [level for level, _ in said(caplog)][:1] == ["WARNING"]


async def test_flushed(victim, locks, caplog):
    """Locks and scripts are gone; the next call loads the script and goes on."""
    (job,) = names()
    assert await locks.take([job], 1) == [0]
    victim.send("FLUSHALL")
    victim.send("SCRIPT", "FLUSH")
    assert await locks.take([job, *names(2)], 3) == [0, 1, 2]
    assert locks.health().ok
    assert said(caplog) == []


async def test_a_connection_that_was_closed_meanwhile_is_replaced(victim, locks, caplog):
    """Redis may close idle connections; that is no outage."""
    await asyncio.gather(*(locks.take(names(), 1) for _ in range(4)))
    victim.send("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await locks.take(names(), 1) == [0]
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("break_it", "mend_it", "reason"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "read only replica"),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "maxmemory"),
        (("ACL", "SETUSER", "default", "-@scripting"), ("ACL", "SETUSER", "default", "+@all"),
         "permission"),
    ],
    ids=["read-only", "out-of-memory", "no-permission"],
)  # fmt: skip
async def test_unwilling(victim, locks, metrics, caplog, break_it, mend_it, reason):
    victim.send(*break_it)
    assert await locks.take(names(), 1) is None
    assert reason in locks.health().detail
    await until(lambda: _errors(metrics, "refused") >= 3)  # a probe does not believe a mere PONG
    assert not locks.health().ok
    victim.send(*mend_it)
    await until(lambda: locks.health().ok)
    assert await locks.take(names(), 1) == [0]
    assert [level for level, _ in said(caplog)] == ["WARNING", "INFO"]


async def test_wrong_password(victim, metrics, caplog):
    victim.send("CONFIG", "SET", "requirepass", "right")
    locks = RedisLocks(f"redis://:hush@{victim.place}", observer=metrics, timeout=0.5)
    await locks.open()
    assert await locks.take(names(), 1) is None
    assert "invalid" in locks.health().detail
    await until(lambda: _errors(metrics, "refused") >= 3)
    await locks.close()
    assert [level for level, _ in said(caplog)] == ["WARNING"]
    assert "hush" not in caplog.text + locks.health().detail


async def test_away_at_the_start(victim, caplog):
    victim.stop()
    locks = RedisLocks(victim.url, timeout=0.5)
    await locks.open()
    await locks.open()  # nothing is begun twice
    assert await locks.take(names(), 1) is None
    victim.start()
    await until(lambda: locks.health().ok)
    assert await locks.take(names(), 1) == [0]
    await locks.close()


async def test_one_that_answers_slowly_at_the_start_is_not_away(victim, caplog):
    """The first look stands in no claim's way: it may take longer than a claim would wait."""
    victim.send("CLIENT", "PAUSE", "300", "WRITE")
    locks = RedisLocks(victim.url, timeout=0.001)
    await locks.open()
    assert locks.health().ok
    assert said(caplog) == []
    await locks.close()


async def test_a_busy_loop_is_not_blamed_on_redis(locks, victim, caplog):
    """The reply came in time; it is this process that did not look."""
    call = asyncio.create_task(locks.take(names(), 1))
    await asyncio.sleep(0)  # it is sent
    time.sleep(0.7)
    assert await call == [0]
    assert said(caplog) == []


async def test_a_slow_one_stays_away(victim, locks, metrics, caplog):
    """What connects but answers too late is not tried again at the expense of calls."""
    victim.send("CLIENT", "PAUSE", "60000", "WRITE")
    assert await locks.take(names(), 1) is None
    await until(lambda: _errors(metrics, "timeout") >= 3)
    assert "no answer within 500 ms" in locks.health().detail
    victim.send("CLIENT", "UNPAUSE")
    await until(lambda: locks.health().ok)
    assert [level for level, _ in said(caplog)] == ["WARNING", "INFO"]
