"""The observer hears every state that a job enters, once: the sum equals the events."""

from __future__ import annotations

from collections import Counter

import pytest

from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import State
from jobqueue.core.observer import Observer
from jobqueue.core.store import BEGINNING
from tests.engine.rig import Rig


class Ear(Observer):
    def __init__(self) -> None:
        self.heard: Counter[State] = Counter()

    def entered(self, queue: str, state: State, count: int) -> None:
        self.heard[state] += count


@pytest.mark.req("jq:FR-040")
async def test_what_is_heard_equals_the_events(open_rig):
    ear = Ear()
    rig: Rig = await open_rig(observer=ear)
    worker = await rig.worker(slots=10)
    quick = await rig.submit(b"quick")
    doomed = await rig.submit(b"doomed", max_retries=0)
    slow = await rig.submit(b"slow")
    back = await rig.submit(b"back")
    got = {a.id: a for a in await worker.gets(4)}
    await worker.succeed(got[quick])
    await worker.fail(got[doomed])
    await worker.start(got[slow])
    await worker.link.drain()
    await worker.link.report([Transition.handed_back(got[back].seq, got[back].lease)])
    await rig.engine.cancel(back)
    written = Counter(
        event.to_state for _, event in await rig.memory.stream.events_after(BEGINNING, 1_000)
    )
    assert ear.heard == written
    assert written[State.RUNNING] == 3
    assert written[State.FAILED] == 2
