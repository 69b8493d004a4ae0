"""From every store through a real Kafka into every store."""

from __future__ import annotations

import pytest

from tests.replay.conftest import OpenEmpty
from tests.replay.mixed import Mixed
from tests.replay.same import assert_same, content_of, submitted_again
from tests.replay.stream import Stream
from tests.replay.test_restore import run_all
from tests.services.topics import Topics as OwnTopics
from tests.stores.every import STORES

pytestmark = [pytest.mark.integration, pytest.mark.req("sch:REPLAY")]


@pytest.mark.timeout(300)  # hundreds of calls to each of four stores
async def test_every_store_can_be_rebuilt_in_every_store(
    kafka: OwnTopics, open_empty: OpenEmpty, store_name: str
):
    stream = Stream(kafka)
    source = await open_empty(store_name)
    await source.queue("q")
    term = await source.term()
    mixed = Mixed(source, lambda: stream.publish(source.store, term))
    await mixed.make()
    await stream.publish(source.store, term)
    once, state = await stream.rebuild()
    # Published again from its beginning: whatever is there twice counts once.
    await source.store.stream.end(term)
    await stream.publish(source.store, term)
    twice, again = await stream.rebuild()
    assert once.repeated == 0
    assert twice.repeated > once.records // 2
    assert (again.jobs, again.keys) == (state.jobs, state.keys)
    expected = await content_of(source.store)
    targets = [await open_empty(name) for name in STORES]
    for target in targets:
        told: list[int] = []
        await target.store.restore(again, told.append)
        assert told == sorted(told)
        assert told[-1] == len(state.jobs)
        await assert_same(expected, target.store)
        assert await target.store.stream.identity() == again.identity
    keys = await submitted_again(source.store, mixed.keyed)
    assert len({status for status, _ in keys}) > 1  # some are free, some are not
    for target in targets:
        assert await submitted_again(target.store, mixed.keyed) == keys
    for target in targets:  # time passes: last
        await run_all(target)
