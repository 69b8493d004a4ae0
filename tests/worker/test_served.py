"""The queues of a worker: created if declared, missed aloud, and found when they appear."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from jobqueue.core.errors import (
    AlreadyExists,
    InvalidArgument,
    JobQueueError,
    PermissionDenied,
    Unavailable,
)
from jobqueue.core.queue import Queue, QueueSpec
from jobqueue.worker import served
from jobqueue.worker.served import ServedQueues
from tests.engine.rig import until


class FakeQueues:
    """A backend that has queues, or fails."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.created: list[QueueSpec] = []
        self.asked: list[Sequence[str]] = []
        self.error: JobQueueError | None = None

    async def create_queue(self, spec: QueueSpec) -> Queue:
        if self.error is not None:
            raise self.error
        if spec.name in self.names:
            raise AlreadyExists(spec.name)
        self.names.add(spec.name)
        self.created.append(spec)
        return Queue(name=spec.name)

    async def missing_queues(self, names: Sequence[str]) -> list[str]:
        if isinstance(self.error, Unavailable):
            raise self.error
        self.asked.append(names)
        return [name for name in names if name not in self.names]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(served, "_LOOK", 0.01)
    monkeypatch.setattr(served, "_FIRST_LOOK", 0.001)
    monkeypatch.setattr(served, "_LONGEST_LOOK", 0.01)
    caplog.set_level(logging.INFO, "jobqueue.worker")


async def test_declared_queues_are_created_and_others_are_left_as_they_are() -> None:
    backend = FakeQueues("old")
    specs = [QueueSpec(name="old", capacity=1), QueueSpec(name="new", capacity=2)]
    queues = ServedQueues(backend, "w", ("old", "new"), specs)
    await queues.start()
    await queues.stop()
    await queues.stop()
    assert backend.created == [specs[1]]


async def test_a_missing_queue_is_told_once_and_again_when_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = FakeQueues("there")
    queues = ServedQueues(backend, "w", ("there", "later"))
    await queues.start()
    await until(lambda: len(backend.asked) > 3)
    assert caplog.messages == [
        "queue 'later' does not exist, so worker w gets no jobs from it; create it with:"
        " jq-ctl queue create later"
    ]
    backend.names.add("later")
    await until(lambda: len(caplog.messages) > 1)
    backend.names.discard("there")
    await until(lambda: len(caplog.messages) > 2)
    await queues.stop()
    assert caplog.messages[1] == "queue 'later' exists now, and worker w takes jobs from it"
    assert caplog.messages[2].startswith("queue 'there' does not exist")
    assert {(r.worker_id, r.levelname) for r in caplog.records} == {  # type: ignore[attr-defined]
        ("w", "WARNING"),
        ("w", "INFO"),
    }


async def test_every_queue_and_those_made_on_demand_are_not_looked_for() -> None:
    backend = FakeQueues()
    queues = ServedQueues(backend, "w", ("*", "taskqueue"), on_demand=("taskqueue",))
    await queues.start()
    await queues.stop()
    assert backend.asked == []


async def test_who_may_not_create_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeQueues()
    backend.error = PermissionDenied("CreateQueue takes the role operator")
    queues = ServedQueues(backend, "w", ("mail",), [QueueSpec(name="mail")])
    await queues.start()
    backend.error = None
    await until(lambda: len(backend.asked) > 3)
    await queues.stop()
    assert backend.created == []
    [line] = caplog.messages
    assert "jq-ctl queue create mail" in line


async def test_a_server_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeQueues()
    backend.error = Unavailable("away")
    queues = ServedQueues(backend, "w", ("mail",), [QueueSpec(name="mail")])
    await queues.start()
    backend.error = None
    await until(lambda: backend.names == {"mail"})
    await queues.stop()
    assert caplog.messages == [
        "cannot create the queues that the tasks declare: away; trying again"
    ]


async def test_a_deleted_queue_is_not_created_again(caplog: pytest.LogCaptureFixture) -> None:
    backend = FakeQueues()
    queues = ServedQueues(backend, "w", ("mail",), [QueueSpec(name="mail")])
    await queues.start()
    backend.names.clear()
    await until(lambda: bool(caplog.messages))
    await queues.stop()
    assert backend.names == set()


async def test_a_bad_declaration_ends_the_start() -> None:
    backend = FakeQueues()
    backend.error = InvalidArgument("capacity", "too large")
    with pytest.raises(InvalidArgument):
        await ServedQueues(backend, "w", ("mail",), [QueueSpec(name="mail")]).start()
