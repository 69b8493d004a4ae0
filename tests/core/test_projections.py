"""The other documents' vocabularies, as tables."""

from __future__ import annotations

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import VIEWS, Reason, State, parse_state, project

SCHEDULER = ["PENDING", "SCHEDULED", "RUNNING", "SUCCESS", "PENDING", "FAILED"]
PRODUCER = ["PENDING", "PENDING", "PROCESSING", "COMPLETED", "FAILED", "DEAD_LETTERED"]
TASKQUEUE = ["QUEUED", "QUEUED", "RUNNING", "DONE", "QUEUED", "FAILED"]


@pytest.mark.parametrize(
    ("view", "names"),
    [
        ("canonical", [state.name for state in State]),
        ("scheduler", SCHEDULER),
        ("producer", PRODUCER),
        ("taskqueue", TASKQUEUE),
    ],
)
def test_each_view_names_each_state(view: str, names: list[str]):
    assert [project(view, state, None) for state in State] == names
    assert VIEWS[view].keys() == set(State)


@pytest.mark.parametrize("view", VIEWS)
def test_only_the_task_queue_tells_a_cancelled_job_apart(view: str):
    cancelled = project(view, State.DEAD_LETTERED, Reason.CANCELLED)
    other = project(view, State.DEAD_LETTERED, Reason.RETRIES_EXHAUSTED)
    if view == "taskqueue":
        assert (cancelled, other) == ("CANCELED", "FAILED")
    else:
        assert cancelled == other


def test_a_reason_changes_nothing_for_a_state_that_is_not_terminal():
    assert project("taskqueue", State.FAILED, Reason.CANCELLED) == "QUEUED"


@pytest.mark.parametrize("text", ["PENDING", "pending", " Dead_Lettered "])
def test_state_names_are_read_in_any_case(text: str):
    assert parse_state(text).name == text.strip().upper()


@pytest.mark.parametrize("text", ["", "QUEUED", "1", "DEAD-LETTERED"])
def test_an_unknown_state_name_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(InvalidArgument) as refused:
        parse_state(text, "states")
    assert refused.value.field == "states"
    assert all(state.name in refused.value.message for state in State)
