"""docs/lifecycle.md is what the table says."""

from __future__ import annotations

from pathlib import Path

from jobqueue.core.lifecycle import State
from scripts import lifecycle_doc

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    assert page == lifecycle_doc.render(), "run scripts/lifecycle_doc.py"


def test_the_page_holds_the_generated_diagram():
    assert lifecycle_doc.diagram() in lifecycle_doc.render()


def test_each_state_has_a_comment_that_says_who_moves_it_on():
    comments = lifecycle_doc.state_comments()
    assert comments.keys() == {state.name for state in State}
    assert all(len(comment) > 20 for comment in comments.values())
