"""Fixtures of the worker's tests."""

import pytest

from tests.worker.fakes import FakeServer


@pytest.fixture
async def server() -> FakeServer:
    return FakeServer()
