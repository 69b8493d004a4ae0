"""Two servers, and two callers who want one id."""

from __future__ import annotations

import asyncio

from jobqueue.core.errors import PermissionDenied
from tests.stores.driver import worker
from tests.stores.postgres.conftest import OpenStore


async def test_only_one_of_two_owners_gets_a_new_id(open_store: OpenStore):
    """There is no row yet that the first could lock."""
    one, other = await open_store(), await open_store()
    for number in range(40):
        made = await asyncio.gather(
            one.workers.register(worker(f"w{number}", 1, owner="alice")),
            other.workers.register(worker(f"w{number}", 2, owner="bob")),
            return_exceptions=True,
        )
        assert {type(answer) for answer in made} == {PermissionDenied, list}, made
