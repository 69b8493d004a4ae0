"""Room for messages: who gets it, who waits for it, and that it comes back."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.access.budgets import MessageBytes
from jobqueue.core.errors import Unavailable

LARGEST = 100


def filled(*accounts: str, room: MessageBytes | None = None) -> MessageBytes:
    """Room of which these callers have taken as much as they get."""
    room = room or MessageBytes(LARGEST)
    for account in accounts:
        while room.take(account):
            pass
    return room


async def waiting(room: MessageBytes, account: str) -> asyncio.Task[None]:
    task = asyncio.create_task(room.wait(account))
    await asyncio.sleep(0)
    return task


def test_a_caller_has_room_for_so_many_messages():
    room = MessageBytes(LARGEST)
    assert [room.take("a") for _ in range(17)] == [True] * 16 + [False]
    assert room.take("b")


def test_a_caller_who_has_nothing_always_gets_room_for_one():
    room = filled("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
    assert room.take("z")
    assert not room.take("z")


async def test_room_goes_to_those_who_wait_each_caller_in_turn():
    room = filled("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
    assert room.take("y")
    assert room.take("z")
    first, second = await waiting(room, "y"), await waiting(room, "y")
    other = await waiting(room, "z")
    assert room.scarce
    room.change("y", LARGEST, 0)
    await first
    room.change("y", LARGEST, 0)
    room.change("z", LARGEST, 0)
    await asyncio.gather(second, other)
    assert not room.scarce


async def test_a_small_message_gives_back_what_was_taken_for_a_large_one():
    room = filled("a")
    late = await waiting(room, "a")
    assert not room.take("a")  # not before those who wait
    assert room.change("a", LARGEST, 10) == 10
    assert not late.done()  # 90 are not enough
    room.change("a", LARGEST, 90)
    await late


async def test_a_call_that_is_cancelled_while_it_waits_takes_nothing():
    room = filled("a")
    gone, next_one = await waiting(room, "a"), await waiting(room, "a")
    gone.cancel()
    room.change("a", LARGEST, 0)
    await next_one
    assert gone.cancelled() or not gone.done()
    # One that was let in at the moment it was cancelled gives its room on.
    unlucky, lucky = await waiting(room, "a"), await waiting(room, "a")
    room.change("a", LARGEST, 0)
    unlucky.cancel()
    await lucky
    for _ in range(16):
        room.change("a", LARGEST, 0)
    assert [room.take("a") for _ in range(17)] == [True] * 16 + [False]


def test_an_answer_is_refused_to_a_caller_with_far_too_many_that_are_not_read():
    room = filled("a")
    room.check("a", LARGEST, LARGEST * 17)
    with pytest.raises(Unavailable, match="a has 1500 bytes of messages under way already"):
        room.check("a", LARGEST, LARGEST * 17 + 1)
    room.check("b", 0, LARGEST * 100)  # its only one


def test_without_accounts_only_all_together_count():
    room = MessageBytes(LARGEST)
    assert [room.take("") for _ in range(65)] == [True] * 64 + [False]
    assert room.take("a")
