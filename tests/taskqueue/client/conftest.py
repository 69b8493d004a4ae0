"""Fixtures of the client's tests."""

from __future__ import annotations

import pytest

from jobqueue.taskqueue.grpc import peer
from tests import patience
from tests.taskqueue.client.fakes import Servers


@pytest.fixture(autouse=True)
def _patient_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """The services' calls to each other have a second, which a busy machine may stand still for."""
    monkeypatch.setattr(peer, "UNARY", patience.longest(5))


@pytest.fixture
def servers() -> Servers:
    return Servers()
