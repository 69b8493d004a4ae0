"""A relay that is killed with -9 between any two of its steps, and the one that comes after it.

On SQLite; PostgreSQL, and whole servers, are in test_scenarios.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from jobqueue.connect.backends import create_store
from jobqueue.core.job import Transition
from jobqueue.core.queue import Queue
from jobqueue.core.store import BEGINNING, Claim, Store
from jobqueue.core.stream import JobEvent
from tests import patience
from tests.events.test_kafka import read
from tests.services.topics import Topics as OwnTopics
from tests.stores.driver import accept

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]


async def child(*args: str) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.events.relay_child", *args),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    try:
        async with patience.timeout(60.0):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def work(store: Store, jobs: int) -> None:
    """Jobs that succeed, fail, and are cancelled."""
    await accept(store, jobs)
    held = await store.jobs.claim([Claim(("q",), ["w"] * (jobs - jobs // 10))])
    moves = []
    for n, one in enumerate(held):
        if n % 3:
            moves.append(Transition.succeeded(one.seq, one.lease, b"r", 0.1))
        else:
            moves.append(Transition.failed(one.seq, one.lease, "boom", retryable=bool(n % 2)))
    await store.jobs.apply(moves)
    await store.jobs.apply(
        [Transition.cancelled(seq) for seq in await store.queues.unfinished("q", jobs)]
    )


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return request.getfixturevalue("redis_url")


@pytest.mark.req("jq:FR-036", "jq:FR-038")
async def test_what_a_killed_relay_leaves_is_published_by_the_next(url: str, kafka: OwnTopics):
    store = create_store(url)
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        for place in ("relay.read", "relay.sent", "relay.acked"):
            await work(store, 700)  # more than a page is read at once
            status = await child(url, kafka.bootstrap, kafka.prefix, place, "2")
            assert status == -signal.SIGKILL, place
        assert await child(url, kafka.bootstrap, kafka.prefix) == 0
        expected: Counter[str] = Counter()
        position = BEGINNING
        while found := await store.stream.events_after(position, 5_000):
            position = found[-1][0]
            expected.update(f"{event.job_id}:{event.version}" for _, event in found)
        seen: dict[str, int] = {}  # the latest version of each job
        records: Counter[str] = Counter()
        for item in await asyncio.to_thread(read, kafka, "jobs"):
            assert isinstance(item, JobEvent)
            records[item.event_id] += 1
            if records[item.event_id] == 1:
                assert item.event.version == seen.get(item.event.job_id, 0) + 1
                seen[item.event.job_id] = item.event.version
        assert set(records) == set(expected)
        assert sum(records.values()) > len(expected)  # it died late enough to repeat something
    finally:
        await store.close()
