"""Every scenario against every deployment, each time a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from jobqueue.taskqueue.grpc import peer
from tests import patience
from tests.taskqueue.public.deployments import DEPLOYMENTS, NEED_SERVERS, Wanted
from tests.taskqueue.public.public import Public

NAMES = [
    pytest.param(name, marks=[pytest.mark.integration] if name in NEED_SERVERS else [])
    for name in DEPLOYMENTS
]

Deploy = Callable[..., Awaitable[Public]]


@pytest.fixture(autouse=True)
def _patient_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """The services' calls to each other have a second, which a busy machine may stand still for."""
    monkeypatch.setattr(peer, "UNARY", patience.longest(5))


@pytest.fixture(params=NAMES)
def deployment(request: pytest.FixtureRequest) -> str:
    """Its name."""
    return str(request.param)


@pytest_asyncio.fixture
async def deploy(request: pytest.FixtureRequest, deployment: str) -> AsyncIterator[Deploy]:
    """Start it as a scenario wants it; it ends with the test."""
    begin = DEPLOYMENTS[deployment](request.getfixturevalue)
    async with AsyncExitStack() as stack:

        async def start(**wanted: Any) -> Public:
            running = await stack.enter_async_context(begin(Wanted(**wanted)))
            public = Public(deployment, running)
            stack.push_async_callback(public.close)
            return public

        yield start


@pytest_asyncio.fixture
async def tq(deploy: Deploy) -> Public:
    """It runs jobs, six at once."""
    return await deploy()


@pytest_asyncio.fixture
async def held(tq: Public) -> Public:
    """Its slots are taken: what is submitted stays queued."""
    await tq.hold()
    return tq
