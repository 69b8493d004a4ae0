"""What the tests of the client share."""

from __future__ import annotations

import pytest

from tests.taskqueue.client.fakes import Servers


@pytest.fixture
def servers() -> Servers:
    return Servers()
