"""Open pages get their news by one stream each, and the store is read once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from jobqueue.access import budgets
from jobqueue.access.rules import BudgetKind
from jobqueue.api.console import console, schedules, workers
from jobqueue.api.console.live import PAGES_PER_SECOND, News
from jobqueue.core.errors import Unavailable
from jobqueue.core.job import JobSpec
from jobqueue.engine.engine import Engine
from jobqueue.server import security
from jobqueue.server.process import ServerProcess
from tests import patience
from tests.console.person import at
from tests.hostile.known_callers import serving

LIVE = {"X-Jobqueue-Live": "1"}


class Counted:
    """A read that returns what a test sets, and is counted."""

    def __init__(self) -> None:
        self.answer = 0
        self.reads = 0

    async def __call__(self) -> int:
        self.reads += 1
        if self.answer < 0:
            raise Unavailable("away")
        return self.answer


@pytest.mark.parametrize("streams", [1, 200])
async def test_many_streams_cost_as_many_reads_as_one(streams: int):
    read = Counted()
    news = News(read)
    await news.look()
    waiting = [asyncio.ensure_future(news.after(news.number)) for _ in range(streams)]
    await news.look()
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting), "nothing has changed"
    read.answer = 1
    await news.look()
    assert set(await asyncio.gather(*waiting)) == {news.number}
    assert read.reads == 3


async def test_a_store_that_does_not_answer_is_news_once():
    read = Counted()
    news = News(read)
    await news.look()
    read.answer = -1
    numbers = []
    for _ in range(3):
        await news.look()
        numbers.append(news.number)
    assert numbers == [2, 2, 2]
    read.answer = 0
    await news.look()
    assert news.number == 3


async def test_nothing_is_read_without_a_stream_and_seldom_for_many():
    read = Counted()
    news = News(read)
    news.enter()
    assert await news.after(0) == 1
    news.leave()
    reads = read.reads
    await asyncio.sleep(0.05)
    assert read.reads == reads
    assert news.interval == console.FRESH
    news.streams = 10 * PAGES_PER_SECOND
    assert news.interval == 10


@asynccontextmanager
async def stream(client: httpx.AsyncClient, path: str = "/ui/live") -> AsyncIterator[Any]:
    """The events of a stream, by name."""
    async with client.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:

        async def names() -> AsyncIterator[str]:
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")

        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield names()


async def test_a_change_is_told_to_every_open_page(server: ServerProcess):
    async with at(server) as person, AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(stream(person.client)) for _ in range(5)]
        async with patience.timeout(30):
            assert {await anext(one) for one in streams} == {"look"}
            await server.backend.submit([JobSpec(payload=b"1")])
            assert {await anext(one) for one in streams} == {"look"}


READS = ("list_queues", "list_workers", "health", "queue_stats", "list_jobs", "get", "history",
         "explain", "group_dead_letters", "list_schedules")  # fmt: skip


@pytest.mark.parametrize("path", ["", "queues", "queues/default", "jobs?status=PENDING", "jobs/ID",
                                  "dlq", "schedules", "workers", "system"])  # fmt: skip
async def test_open_pages_share_their_reads_of_the_store(
    monkeypatch: pytest.MonkeyPatch, path: str
):
    for module in (console, workers, schedules):
        monkeypatch.setattr(module, "FRESH" if module is console else "_FRESH", 3_600.0)
    counts: list[str] = []

    def counted(name: str, real: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            counts.append(name)
            return await real(*args, **kwargs)

        return call

    for name in READS:
        real = getattr(Engine, name)
        monkeypatch.setattr(Engine, name, counted(name, real))
    async with serving(known=False) as server, at(server) as person:
        [made] = await server.backend.submit([JobSpec(payload=b"1", type="send")])
        url = f"/ui/{path.replace('ID', made.job_id)}"
        assert (await person.client.get(url, headers=LIVE)).status_code == 200
        one = list(counts)
        assert one
        many = [person.client.get(url, headers=LIVE) for _ in range(20)]
        assert {answer.status_code for answer in await asyncio.gather(*many)} == {200}
        assert counts == one, "20 more pages have read something"


async def test_a_page_that_a_person_opens_is_fresh(server: ServerProcess):
    [made] = await server.backend.submit([JobSpec(payload=b"1")])
    async with at(server) as person:
        await person.client.get(f"/ui/jobs/{made.job_id}", headers=LIVE)
        await server.backend.cancel(made.job_id)
        page = await person.open(f"/ui/jobs/{made.job_id}")
        assert "DEAD_LETTERED" in page.text


async def test_pages_have_a_budget_of_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        budgets, "DEFAULTS", {**budgets.DEFAULTS, BudgetKind.PAGE: budgets.Budget(2, 2)}
    )
    monkeypatch.setattr(security, "DEFAULTS", budgets.DEFAULTS)
    async with serving(known=False) as server, at(server) as person, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(stream(person.client))
        assert (await person.client.get("/ui/live")).status_code == 503
        [made] = await server.backend.submit([JobSpec(payload=b"1")])
        events = await stack.enter_async_context(
            stream(person.client, f"/jobs/{made.job_id}/events?watch=1")
        )
        assert await anext(events) == "transition"
        assert (await person.open("/ui/")).status == 200


async def test_a_stream_ends_with_its_session(keyed: ServerProcess):
    sessions = keyed._base.access.sessions
    async with at(keyed) as person:
        assert (await person.client.get("/ui/live")).status_code in (303, 401)
        await person.log_in("guest")
        async with stream(person.client) as events, patience.timeout(40):
            assert await anext(events) == "look"
            sessions._secret = b"another secret, so that no session is valid"
            seen = [name async for name in events]
            assert seen[-1] == "over"
            assert set(seen) <= {"look", "over"}


async def test_a_stream_ends_when_the_server_stops():
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(known=False))
        person = await stack.enter_async_context(at(server))
        events = await stack.enter_async_context(stream(person.client))
        async with patience.timeout(40):
            assert await anext(events) == "look"
            stopping = asyncio.ensure_future(server.stop())
            assert [name async for name in events if name != "look"] == []
            await stopping
