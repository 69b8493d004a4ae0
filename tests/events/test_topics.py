"""Which record goes to which topic."""

from __future__ import annotations

import pytest

from jobqueue.config import Settings
from jobqueue.core.rebuild import World
from jobqueue.core.stream import AssignmentRepeated, Route, WorkerChange, WorkerEvent
from jobqueue.events.codec import decode, encode
from jobqueue.events.topics import Topics
from jobqueue.topology import stream

CAME = WorkerEvent(WorkerChange.REGISTERED, "w", 2**63 - 1, 12.5)
AGAIN = AssignmentRepeated("job", "q", 1, 1, "w", Route(3, 7), 12.5)


def test_workers_are_told_of_where_a_topic_is_named():
    assert Topics().messages(CAME) == []
    (message,) = Topics(workers="workers").messages(CAME)
    assert (message.topic, message.key, message.event_id) == ("workers", b"w", CAME.event_id)
    assert decode(message.value) == CAME


def test_a_hint_is_never_published():
    assert Topics(workers="workers").messages(AGAIN) == []
    with pytest.raises(TypeError, match="AssignmentRepeated is a hint"):
        encode(AGAIN)


def test_nothing_is_rebuilt_from_either():
    world = World()
    assert not world.add(CAME)
    assert not world.add(AGAIN)
    assert world == World()


@pytest.mark.parametrize(
    ("url", "made"), [("redis://r:1/0", True), ("rediss://r:1/0", True), ("memory://", False)]
)
def test_only_a_store_on_redis_has_a_topic_of_workers(url: str, made: bool):
    """Others would get one that stays empty."""
    settings = Settings.model_validate({"db": {"url": url}, "kafka": {"topic_workers": "named"}})
    assert ("named" in stream.topics(settings).all) is made
