"""The wired parts, and their log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from jobqueue.taskqueue.components import journal
from tests.taskqueue.protocols.rig import Lines, Rig


@pytest.fixture
def lines() -> Iterator[Lines]:
    found = Lines()
    level = journal.log.level
    journal.log.addHandler(found)
    journal.log.setLevel(logging.INFO)
    yield found
    journal.log.setLevel(level)
    journal.log.removeHandler(found)


@pytest.fixture
def rig(lines: Lines) -> Iterator[Rig]:
    made = Rig(lines)
    yield made
    for points in (made.gateway_calls, made.coordinator_calls, made.worker_calls):
        assert not points.unmet, "planned, but never met: the test drove something else"
