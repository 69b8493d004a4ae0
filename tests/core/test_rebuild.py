"""A job from its records: repeated ones change nothing, and a gap is noticed."""

from __future__ import annotations

import pytest

from jobqueue.core.job import Event
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.rebuild import World, fold
from jobqueue.core.stream import CancelRequested, Created, Failed, JobDeleted, JobEvent
from tests.records import made


def event(version: int, before: State | None, after: State, reason: Reason, **more) -> JobEvent:
    return JobEvent(
        Event("job", version, before, after, reason, float(version), 1, "w", "", "q"), **more
    )


CREATED = made(
    Created, seq=1, type="t", payload=b"p", priority=0, max_retries=3, created_at=1.0, key="k",
    key_expires_at=99.0,
)  # fmt: skip
STORY = [
    event(1, None, State.PENDING, Reason.SUBMITTED, created=CREATED),
    event(2, State.PENDING, State.ASSIGNED, Reason.ASSIGNED),
    event(3, State.ASSIGNED, State.RUNNING, Reason.STARTED),
    event(4, State.RUNNING, State.FAILED, Reason.WORKER_LOST, failed=Failed(0, 2.5, 9.0)),
]


@pytest.mark.req("jq:FR-036")
def test_the_parts_of_events_make_the_job():
    rebuilt = fold(STORY)
    assert (rebuilt.job.state, rebuilt.job.started_at, rebuilt.job.next_retry_at) == (
        State.FAILED,
        2.5,
        9.0,
    )
    assert rebuilt.deaths == 1
    assert rebuilt.history == [one.event for one in STORY]


def test_no_job_began_before_it_was_there():
    """As the job itself says it, whatever its worker said."""
    failed = event(4, State.RUNNING, State.FAILED, Reason.WORKER_LOST, failed=Failed(0, 0.5, 9.0))
    assert fold([*STORY[:3], failed]).job.started_at == CREATED.created_at


def test_repeated_records_change_nothing():
    assert fold([*STORY[:3], *STORY[:2], *STORY]) == fold(STORY)


@pytest.mark.parametrize(
    "records", [STORY[1:], [STORY[0], STORY[2]], [], [CancelRequested("job", "q", 3, 3.0)]]
)
def test_a_gap_is_an_error(records: list[JobEvent | CancelRequested]):
    with pytest.raises(LookupError):
        fold(records)


def test_a_cancel_counts_for_the_version_that_it_was_made_for():
    flag = CancelRequested("job", "q", 3, 3.5)
    assert fold([*STORY[:3], flag]).job.cancel_requested
    assert not fold([*STORY[:4], flag]).job.cancel_requested  # repeated, late


def test_a_deleted_job_stays_deleted_and_leaves_its_key():
    world = World()
    for one in STORY:
        world.add(one)
    assert world.add(JobDeleted("job", "q", 4, 10.0, key_freed=False))
    for one in STORY:  # published again
        assert not world.add(one)
    assert not world.jobs
    assert [(key.key, key.expires_at) for key in world.keys] == [("k", 99.0)]
