"""Watches that are not read take little memory, however long the history is."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from jobqueue.core.job import MAX_ERROR_BYTES, Event, JobSpec, Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.store import Claim
from jobqueue.core.waiting import account
from jobqueue.engine.engine import Engine

ATTEMPTS = 30
WATCHES = 8


class Text(str):
    """A text of an event that can be counted while it is in memory."""


async def long_history(engine: Engine) -> str:
    """A job that has failed often, each time with a long error."""
    (result,) = await engine.submit([JobSpec(payload=b"1", max_retries=100)])
    for _ in range(ATTEMPTS):
        while not (held := await engine.store.jobs.claim([Claim(("default",), ["w"])])):
            await engine.sweep()
        (one,) = held
        failed = Transition.failed(one.seq, one.lease, "x" * MAX_ERROR_BYTES, retry_after=0.0)
        assert (await engine.store.jobs.apply([failed])).outcomes[0].applied
    return result.job_id


async def test_a_watch_that_is_not_read_keeps_few_events(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """Before, it kept 500 of them, up to 4 MiB, and a caller may have 4,000 watches."""
    job_id = await long_history(engine)
    texts: list[weakref.ref[Text]] = []
    history = type(engine.store.reads).history
    under_way = most = 0

    async def fresh(self: Any, *asked: Any) -> list[Event]:
        """As a database reads it: each time with texts of its own."""
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        events = [replace(one, detail=Text(one.detail)) for one in await history(self, *asked)]
        texts.extend(weakref.ref(cast(Text, one.detail)) for one in events if one.detail)
        under_way -= 1
        return events

    monkeypatch.setattr(type(engine.store.reads), "history", fresh)
    account.set("name hungry")
    watches: list[AsyncIterator[Event]] = [engine.watch(job_id) for _ in range(WATCHES)]
    await asyncio.gather(*(anext(watch) for watch in watches))
    gc.collect()
    kept = sum(text() is not None for text in texts)
    assert kept <= 3 * WATCHES
    assert most == 1  # one read of a caller at a time

    seen = 1  # the first one is read to its end all the same
    async for event in watches[0]:
        seen += 1
        assert event.version == seen
        if seen == 4 * ATTEMPTS:  # assigned, started and failed, and pending in between
            break
    assert event.to_state is State.FAILED
    for watch in watches:
        await watch.aclose()  # type: ignore[attr-defined]
