"""The work of a job."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.taskqueue.components.model import MAX_OUTPUT_BYTES, OUTPUT_TOO_LARGE, Spec
from jobqueue.taskqueue.components.worker_loop import FAILING_TYPE, FAILURE, WorkFailed, simulate
from tests.taskqueue.protocols.virtual_time import virtual_time


@pytest.mark.req("tq:RESULT")
@pytest.mark.parametrize("size", [0, 1, MAX_OUTPUT_BYTES])
@virtual_time
async def test_it_takes_its_time_and_makes_that_many_bytes(size):
    made = await simulate(Spec("t", 2_500, size))
    assert asyncio.get_running_loop().time() == pytest.approx(2.5)
    assert len(made.output) == size
    assert str(size) in made.summary


@virtual_time
async def test_one_type_fails_after_its_time():
    with pytest.raises(WorkFailed, match=FAILURE):
        await simulate(Spec(FAILING_TYPE, 1_000))
    assert asyncio.get_running_loop().time() == pytest.approx(1.0)


@pytest.mark.req("tq:RESULT", "tq:LOCK-18")
@pytest.mark.parametrize("size", [MAX_OUTPUT_BYTES + 1, 2**32 - 1])
@virtual_time
async def test_an_output_over_the_cap_is_not_even_made(size):
    with pytest.raises(WorkFailed, match=f"{OUTPUT_TOO_LARGE}: {size} bytes"):
        await simulate(Spec("t", 0, size))
