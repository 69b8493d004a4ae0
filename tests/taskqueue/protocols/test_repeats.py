"""First answers, repeated; protocols that end though their caller left."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.taskqueue.components.repeats import Protocols, Repeats, in_hand
from tests.taskqueue.protocols.rig import Lines
from tests.taskqueue.protocols.virtual_time import virtual_time


class Counting:
    """Answers 1, 2, 3 …"""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


@pytest.mark.req("tq:CODES")
def test_the_first_answer_is_repeated_for_the_same_method_and_id():
    repeats, call = Repeats(), Counting()
    asked = [repeats.answer(*who, call) for who in (("m", "a"), ("m", "a"), ("m", "b"), ("n", "a"))]
    assert asked == [1, 1, 2, 3]


def test_without_an_id_nothing_is_repeated():
    repeats, call = Repeats(), Counting()
    assert [repeats.answer("m", "", call) for _ in range(2)] == [1, 2]


def test_none_is_an_answer():
    repeats = Repeats()
    assert repeats.answer("m", "a", lambda: None) is None
    assert repeats.known("m", "a") == (None,)
    assert repeats.known("m", "b") is None


def test_an_error_is_no_answer():
    repeats, call = Repeats(), Counting()

    def fail() -> int:
        raise Unavailable("down")

    with pytest.raises(Unavailable):
        repeats.answer("m", "a", fail)
    assert repeats.answer("m", "a", call) == 1


def test_the_oldest_answer_is_forgotten():
    repeats, call = Repeats(bound=2), Counting()
    for request_id in "abc":
        repeats.answer("m", request_id, call)
    assert repeats.answer("m", "b", call) == 2
    assert repeats.answer("m", "c", call) == 3
    assert repeats.answer("m", "a", call) == 4


# -- protocols -------------------------------------------------------------------------------------


class Slow:
    """A protocol that ends when it is let."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go_on = asyncio.Event()
        self.began = 0
        self.ended = 0
        self._error = error

    async def __call__(self) -> int:
        self.began += 1
        await self.go_on.wait()
        self.ended += 1
        if self._error is not None:
            raise self._error
        return self.ended


@pytest.mark.req("tq:SUBMIT")
@virtual_time
async def test_a_protocol_ends_though_its_caller_was_cancelled():
    protocols, slow = Protocols(), Slow()
    caller = asyncio.create_task(protocols.run(slow()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert slow.ended == 0
    slow.go_on.set()
    await protocols.settle(1)
    assert slow.ended == 1


@virtual_time
async def test_who_asks_again_meanwhile_joins_and_who_asks_later_is_told_the_same():
    protocols, slow = Protocols(), Slow()
    callers = [asyncio.create_task(protocols.once("m", "a", slow)) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()
    slow.go_on.set()
    await asyncio.wait(callers)
    assert [caller.result() for caller in callers[1:]] == [1, 1]
    assert await protocols.once("m", "a", slow) == 1
    assert slow.began == 1
    assert await protocols.once("m", "b", slow) == 2
    assert await protocols.once("m", "", slow) == 3
    assert await protocols.once("m", "", slow) == 4


@virtual_time
async def test_after_an_error_the_protocol_is_run_again():
    protocols, slow = Protocols(), Slow(Unavailable("down"))
    slow.go_on.set()
    for _ in range(2):
        with pytest.raises(Unavailable):
            await protocols.once("m", "a", slow)
        await asyncio.sleep(0)
    assert slow.began == 2


@virtual_time
async def test_settle_waits_and_then_cuts_off_and_says_which_job_was_in_hand(lines: Lines):
    protocols, slow = Protocols(), Slow()

    async def holding() -> None:
        with in_hand("half of it is done", "j"):
            await slow()

    caller = asyncio.create_task(protocols.run(holding()))
    await asyncio.sleep(0)
    began = asyncio.get_running_loop().time()
    await protocols.settle(2)
    assert asyncio.get_running_loop().time() == began + 2
    with pytest.raises(asyncio.CancelledError):
        await caller
    (line,) = lines.anomalies("j")
    assert "half of it" in line.getMessage()


@virtual_time
async def test_a_defect_is_logged_though_nobody_waits_for_it(lines: Lines):
    protocols, slow = Protocols(), Slow(ZeroDivisionError("oops"))
    caller = asyncio.create_task(protocols.run(slow()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    slow.go_on.set()
    await protocols.settle(1)
    (line,) = lines.of("protocol_failed")
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError


@virtual_time
async def test_what_was_foreseen_is_not_logged_as_a_defect(lines: Lines):
    protocols, slow = Protocols(), Slow(Unavailable("down"))
    slow.go_on.set()
    with pytest.raises(Unavailable):
        await protocols.run(slow())
    await protocols.settle(1)
    assert not lines.of("protocol_failed")
