"""Workers that name many queues do not slow down the jobs of others."""

from __future__ import annotations

from typing import ClassVar

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.job import WorkerInfo
from jobqueue.engine.engine import Engine
from jobqueue.engine.sessions import Scope, Session, Sessions, concerns
from tests.api.grpc.inbox import RecordingInbox

WORKERS, QUEUES = 60, 900
MOST = 10_000 + QUEUES  # names in the claims of one write


class Name(str):
    """A queue whose looks are counted."""

    __slots__ = ()
    looks: ClassVar[int] = 0

    def __hash__(self) -> int:
        Name.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return super().__eq__(other)


def info(number: int, queues: tuple[str, ...], owner: str = "", *, fallback: bool = False):
    return WorkerInfo(
        id=f"w{number}", incarnation=1, hostname="h", pid=1, concurrency=1, queues=queues,
        owner=owner, fallback=fallback,
    )  # fmt: skip


def connected(named: list[tuple[str, ...]], *, fallback: bool = False) -> Sessions:
    sessions = Sessions()
    for number, queues in enumerate(named):
        sessions.add(Session(info(number, queues), RecordingInbox(), free=1))
    if fallback:
        pool = info(len(named), ("*",), fallback=True)
        sessions.add(Session(pool, RecordingInbox(), free=1))
    return sessions


def lists() -> list[tuple[str, ...]]:
    """A list for each worker, all but one of its queues in the lists of the others, too."""
    shared = tuple(Name(f"shared{at}") for at in range(QUEUES - 1))
    return [(*shared, Name(f"own{number}")) for number in range(WORKERS)]


def never(scope: Scope) -> bool:
    return True


@pytest.mark.parametrize("fallback", [False, True])
def test_a_plan_does_not_look_at_every_name(fallback: bool):
    """Before, it looked at each of them several times, for each submit of anybody."""
    sessions = connected(lists(), fallback=fallback)
    sessions.plan(100, 1, never, {}, {})
    Name.looks = 0
    scopes: list[Scope] = []

    def note(scope: Scope) -> bool:
        scopes.append(scope)
        return True

    sessions.plan(100, 1, note, {}, {})
    assert len(scopes) == WORKERS + fallback
    work = {"default": {""}}
    assert not any(concerns(scope, work) for scope in scopes[:WORKERS])
    assert Name.looks < WORKERS * 10


def test_workers_with_equal_lists_are_compared_without_their_names():
    sessions = connected([tuple(Name(f"q{at}") for at in range(QUEUES)) for _ in range(WORKERS)])
    Name.looks = 0
    plan = sessions.plan(WORKERS, 1, lambda scope: False, {}, {})
    assert [len(claim.slots) for claim in plan.claims] == [WORKERS]
    assert Name.looks < WORKERS * 10


def test_the_claims_of_one_write_name_so_much_at_most():
    sessions = connected(lists())
    dry: set[Scope] = set()
    rounds = 0
    left = True
    while left:  # each worker has its turn
        plan = sessions.plan(1_000, 1, dry.__contains__, {}, {})
        assert sum(len(claim.queues) for claim in plan.claims) <= MOST
        dry.update(plan.scopes)
        sessions.settle(plan, ())
        left = plan.left_out
        rounds += 1
        assert rounds <= WORKERS
    assert len(dry) == WORKERS
    assert rounds > 1


def test_workers_that_name_much_do_not_take_all_turns_of_others():
    """They come first, as they are idle, and each may make every scope be looked at again."""
    sessions = connected(lists())
    busy = Session(info(WORKERS, ("default",)), RecordingInbox(), held={7})
    busy.info.concurrency, busy.free = 2, 1
    sessions.add(busy)
    for _ in range(2):
        for _ in range(WORKERS):
            plan = sessions.plan(1_000, 1, lambda scope: False, {}, {})
            sessions.settle(plan, ())
            if busy in plan.promised:
                break
        assert busy in plan.promised


async def test_a_caller_registers_no_fallback(engine: Engine):
    """What a fallback takes depends on the lists of all others."""
    with pytest.raises(InvalidArgument, match="fallback"):
        await engine.connect(info(1, ("*",), "fleet", fallback=True), RecordingInbox())
    await engine.connect(info(2, ("*",), "fleet"), RecordingInbox())
    await engine.connect(info(3, ("*",), fallback=True), RecordingInbox())  # nobody is known
