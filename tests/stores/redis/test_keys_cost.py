"""Jobs without a concurrency key leave nothing of keys in Redis; others only while they wait."""

from __future__ import annotations

import pytest

from jobqueue.core.job import Transition
from jobqueue.core.store import Claim
from tests.stores.driver import new, spec

PREFIXES = ("ready_of_key:", "ready_keys:", "key_held:", "key_of_held:", "key_buckets:")


async def left_of_keys(client) -> list[str]:
    names = [name async for name in client.scan_iter("{jq}:*")]
    return sorted(name for name in names if name.removeprefix("{jq}:").startswith(PREFIXES))


@pytest.mark.parametrize("key", [None, "tenant:1"])
async def test_what_is_kept_of_keys(open_store, client, key):
    store = await open_store()
    batch = new(*(spec(concurrency_key=key) for _ in range(3)), spec(concurrency_key=key, delay=60))
    await store.jobs.submit(batch)
    assert await left_of_keys(client) == (
        ["{jq}:ready_keys:q", "{jq}:ready_of_key:q:tenant:1\0"] if key else []
    )
    assert await client.hexists(f"{{jq}}:job:{batch[0].id}", "concurrency_key") is bool(key)
    one, two = await store.jobs.claim([Claim(("q",), ["w"] * 2)])
    last = (await store.reads.get(batch[2].id)).seq
    waits = (await store.reads.get(batch[3].id)).seq
    await store.jobs.apply([Transition.succeeded(one.seq, one.lease, b"r")])
    await store.jobs.apply([Transition.started(two.seq, two.lease)])
    assert await left_of_keys(client) == (
        [
            "{jq}:key_held:q",
            "{jq}:key_of_held:q",
            "{jq}:ready_keys:q",
            "{jq}:ready_of_key:q:tenant:1\0",
        ]
        if key
        else []
    )
    await store.jobs.apply(
        [
            Transition.succeeded(two.seq, two.lease, b"r"),
            Transition.cancelled(last),
            Transition.cancelled(waits),
        ]
    )
    assert await left_of_keys(client) == []


async def test_full_buckets_are_removed(open_store, client):
    store = await open_store()
    # The bucket is full again after 10 microseconds, sooner than the next call arrives.
    await store.queues.update("q", {"key_rate": 100_000, "key_rate_burst": 1})
    for n in range(5):
        await store.jobs.submit(new(spec(concurrency_key=f"k{n}")))
        assert len(await store.jobs.claim([Claim(("q",), ["w"])])) == 1
    assert await client.zcard("{jq}:key_buckets:q") < 5
    await store.queues.update("q", {"key_rate": 1, "key_rate_period": 1_000.0})
    await store.jobs.submit(new(spec(concurrency_key="slow")))
    await store.jobs.claim([Claim(("q",), ["w"])])
    assert await client.zrange("{jq}:key_buckets:q", 0, -1) == ["slow"]
    for held in await store.workers.held():
        await store.jobs.apply([Transition.succeeded(held.seq, held.lease, b"r")])
    assert await store.queues.delete("q") == 0
    assert await client.exists("{jq}:key_buckets:q") == 0
