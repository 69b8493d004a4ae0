"""The lifecycle table: the edges that the documents allow, and no other."""

from __future__ import annotations

import itertools

import pytest

from jobqueue.core.lifecycle import (
    FENCED,
    HELD,
    PATHS,
    REPORTABLE,
    TERMINAL,
    TRANSITIONS,
    Move,
    Reason,
    State,
)
from scripts import lifecycle_doc

P, A, R, D, F, X = (
    State.PENDING,
    State.ASSIGNED,
    State.RUNNING,
    State.DONE,
    State.FAILED,
    State.DEAD_LETTERED,
)

# jq:FR-010, as it is written there.
DOCUMENTED = {(P, A), (A, R), (R, D), (R, F), (F, P), (F, X), (A, F), (P, X)}
# jq:FR-012 (cancel of an ASSIGNED job) and jq:FR-013 (retry of a dead letter) add these two.
ADDED_BY_OTHER_REQUIREMENTS = {(A, X), (X, P)}

# What each move does, written down a second time on purpose: state it starts from -> the walk.
EXPECTED: dict[Move, dict[State, list[State]]] = {
    Move.START: {A: [R]},
    Move.SUCCEED: {A: [R, D], R: [D]},
    Move.FAIL: {A: [R, F], R: [F]},
    Move.TIME_OUT: {A: [R, F], R: [F]},
    Move.ACKNOWLEDGE_CANCEL: {A: [R, F], R: [F]},
    Move.HAND_BACK: {A: [F, P]},
    Move.LOSE_WORKER: {A: [F], R: [F]},
    Move.TIME_OUT_ASSIGNMENT: {A: [F]},
    Move.RETRY_WHEN_DUE: {F: [P]},
    Move.EXPIRE: {P: [X]},
    Move.CANCEL: {P: [X], A: [X], F: [X]},
    Move.SUPERSEDE: {P: [X], F: [X]},
    Move.DROP_WITH_QUEUE: {P: [X], A: [X], R: [F, X], F: [X]},
    Move.RETRY_BY_HAND: {F: [P], X: [P]},
}


@pytest.mark.req("jq:FR-009")
def test_there_are_exactly_six_states():
    assert [state.name for state in State] == [
        "PENDING",
        "ASSIGNED",
        "RUNNING",
        "DONE",
        "FAILED",
        "DEAD_LETTERED",
    ]
    assert {D, X} == TERMINAL
    assert {A, R} == HELD


@pytest.mark.req("jq:FR-010")
def test_the_edges_are_those_of_the_documents_and_no_other():
    edges = {edge for edge in TRANSITIONS if edge[0] is not None}
    assert edges == DOCUMENTED | ADDED_BY_OTHER_REQUIREMENTS
    assert {edge for edge in TRANSITIONS if edge[0] is None} == {(None, P)}
    assert all(TRANSITIONS.values()), "an edge without a reason could never be written"


@pytest.mark.req("jq:FR-012", "jq:FR-013")
def test_the_two_added_edges_belong_to_cancel_and_to_manual_retry_alone():
    assert TRANSITIONS[A, X] == {Reason.CANCELLED, Reason.QUEUE_DELETED}
    assert TRANSITIONS[X, P] == {Reason.MANUAL_RETRY}


def test_nothing_leaves_done():
    assert not [edge for edge in TRANSITIONS if edge[0] is D]
    assert not [move for move, starts in PATHS.items() if D in starts]


@pytest.mark.req("jq:FR-010")
@pytest.mark.parametrize(("move", "state"), [*itertools.product(Move, State)])
def test_each_move_from_each_state_walks_its_path_or_is_refused(move: Move, state: State):
    path = PATHS[move].get(state)
    walk = None if path is None else [target for target, _ in path]
    assert walk == EXPECTED[move].get(state)
    if path is None:
        return
    here = state
    for target, reason in path:
        assert reason in TRANSITIONS[here, target]
        here = target


def test_every_edge_is_walked_by_something():
    """An edge that nothing walks would be a hole in the table that no test could reach."""
    walked: set[tuple[State, State]] = {(P, A)}  # the claim
    walked.add((F, X))  # after_failure
    for starts in PATHS.values():
        for origin, path in starts.items():
            here = origin
            for target, _ in path:
                walked.add((here, target))
                here = target
    assert walked == {edge for edge in TRANSITIONS if edge[0] is not None}


def test_every_move_that_touches_a_held_job_on_a_workers_word_is_fenced():
    unfenced_on_held = {
        move for move, starts in PATHS.items() if HELD & starts.keys() and move not in FENCED
    }
    assert unfenced_on_held == {Move.CANCEL, Move.DROP_WITH_QUEUE}, "an operator's word stands"
    assert REPORTABLE < FENCED
    assert {Move.LOSE_WORKER, Move.TIME_OUT_ASSIGNMENT} == FENCED - REPORTABLE


def test_the_diagram_shows_every_edge():
    text = lifecycle_doc.diagram()
    for origin, target in TRANSITIONS:
        assert f"    {origin.name if origin else '[*]'} --> {target.name} : " in text
    assert text.count("-->") == len(TRANSITIONS) + len(TERMINAL)
