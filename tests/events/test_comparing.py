"""The judge of the scenarios sees what is wrong with a stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobqueue.bench.scenarios.stream_judge import StreamDiffers, StreamMessage, compare
from jobqueue.core.job import Event
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.stream import JobEvent

WAY = [
    (None, State.PENDING, Reason.SUBMITTED),
    (State.PENDING, State.ASSIGNED, Reason.ASSIGNED),
    (State.ASSIGNED, State.FAILED, Reason.HANDLER_FAILED),
    (State.FAILED, State.DEAD_LETTERED, Reason.RETRIES_EXHAUSTED),
]


def history(job_id: str) -> list[Event]:
    return [
        Event(job_id, version, before, after, reason, 100.0 + version, 1, "w", "boom", "q")
        for version, (before, after, reason) in enumerate(WAY, 1)
    ]


EVENTS = [*history("a"), *history("b")]
TRUTH = {f"{event.job_id}:{event.version}": event for event in EVENTS}


def stream(events: list[Event] = EVENTS) -> list[StreamMessage]:
    return [
        StreamMessage(0, offset, event.job_id, JobEvent(event), 0.0)
        for offset, event in enumerate(events)
    ]


def dead(events: list[Event] = EVENTS) -> list[StreamMessage]:
    return stream([event for event in events if event.to_state is State.DEAD_LETTERED])


def test_the_same_is_the_same_however_often_it_comes():
    once = compare(TRUTH, stream(), dead())
    assert (once.jobs, once.events, once.records, once.repeated) == (2, 8, 8, 0)
    assert once.ends == {State.DEAD_LETTERED: 2}
    assert compare(TRUTH, stream([*EVENTS[:5], *EVENTS[2:]]), dead()).repeated == 3


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda all_: [*all_[:3], *all_[4:]], "1 events are not in Kafka"),
        (lambda all_: [all_[1], all_[0], *all_[2:]], "a:2 follows version 0"),
        (lambda all_: [replace(all_[0], worker_id="other"), *all_[1:]], "in the store"),
        (lambda all_: [replace(all_[0], at=1.0), *all_[1:]], "in the store"),
        (lambda all_: [*all_, *history("c")], "None in the store"),
    ],
    ids=["missing", "out of order", "another worker", "another time", "not in the table"],
)
def test_what_differs_is_told(spoil: Callable[[list[Event]], list[Event]], said: str):
    with pytest.raises(StreamDiffers, match=said):
        compare(TRUTH, stream(spoil(EVENTS)), dead())


def test_a_job_has_one_key_and_one_partition():
    wrong_key, elsewhere = stream(), stream()
    wrong_key[1] = replace(wrong_key[1], key="b")
    elsewhere[1] = replace(elsewhere[1], partition=1)
    for records in (wrong_key, elsewhere):
        with pytest.raises(StreamDiffers, match="a:2 has key"):
            compare(TRUTH, records, dead())


@pytest.mark.parametrize("events", [EVENTS[:4], [*EVENTS, *history("c")]])
def test_dead_letters_are_counted(events: list[Event]):
    with pytest.raises(StreamDiffers, match="dead letters"):
        compare(TRUTH, stream(), dead(events))
