"""Kafka keeps the order within a partition only: the order between partitions must not count."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from jobqueue.core.identity import Identity
from jobqueue.core.rebuild import gather
from jobqueue.core.stream import JobDeleted, RecordItem
from tests.replay.test_damage import MADE, read, story

pytestmark = pytest.mark.req("sch:REPLAY")


def under_key(job_id: str, seq: int, key: str, expires_at: float) -> list[RecordItem]:
    """A job that was done, submitted under a key."""
    first, *rest = story(job_id, seq)
    assert first.created is not None
    spec = replace(first.created.spec, key=key)
    first.created = replace(first.created, spec=spec, key_expires_at=expires_at)
    return [first, *rest]


PARTITIONS: list[list[RecordItem]] = [
    [MADE],
    under_key("b", 1, "of b", 99.0),
    [*under_key("c", 2, "taken anew", 50.0), JobDeleted("c", "q", 4, 10.0, key_freed=False)],
    [*under_key("d", 3, "taken anew", 99.0), *under_key("a", 4, "of a", 99.0)],
    [*under_key("e", 5, "of e", 99.0), JobDeleted("e", "q", 4, 10.0, key_freed=False)],
]


def test_partitions_may_be_read_in_any_order():
    expected = gather(
        read(*itertools.chain(*PARTITIONS)).world, published=True, identity=Identity("s")
    )
    assert {(key.key, key.job_id) for key in expected.keys} == {
        ("of a", "a"), ("of b", "b"), ("taken anew", "d"), ("of e", "e"),
    }  # fmt: skip
    for order in itertools.permutations(PARTITIONS):
        world = read(*itertools.chain(*order)).world
        assert gather(world, published=True, identity=Identity("s")) == expected
