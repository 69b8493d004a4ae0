"""Jobs that are each of a type of their own do not make a memory store slow."""

from __future__ import annotations

import random

from jobqueue.stores.memory.ready import SLACK, ReadyJobs

MANY = 5_000


class Looks:
    """Claimable jobs, and how often they were looked at."""

    def __init__(self) -> None:
        self.types: dict[int, str] = {}
        self.looks = 0
        self.ready = ReadyJobs(self.type_of)

    def type_of(self, seq: int) -> str | None:
        self.looks += 1
        return self.types.get(seq)

    def push(self, seq: int, type: str, priority: int = 4) -> None:
        self.types[seq] = type
        self.ready.push(priority, seq, type)

    def bury(self, seq: int) -> None:
        self.ready.bury(self.types.pop(seq))

    def claim(self, types: frozenset[str] | None) -> int | None:
        first = self.ready.first(types)
        if first is None:
            return None
        rank, seq, type = first
        self.ready.take(rank, type)
        del self.types[seq]
        return seq


def test_a_claim_of_all_types_does_not_look_at_every_type():
    jobs = Looks()
    for seq in range(MANY):
        jobs.push(seq, f"t{seq}")
    assert jobs.claim(frozenset({"another"})) is None
    jobs.looks = 0
    assert [jobs.claim(None) for _ in range(MANY)] == list(range(MANY))
    assert jobs.looks <= 4 * MANY
    assert jobs.claim(None) is None


def test_claims_of_all_types_and_of_some_get_the_first_job():
    dice = random.Random(13)
    jobs = Looks()
    priorities: dict[int, int] = {}
    types_of: dict[int, str] = {}
    choices = [None, *(frozenset({f"t{n}", f"t{n + 1}"}) for n in range(20))]
    for seq in range(6_000):
        number = dice.choice([seq, *priorities]) if not seq % 7 else seq  # some come back
        if number not in jobs.types:
            # A job that comes back has the type and priority that it had.
            priorities.setdefault(number, dice.choice([3, 4]))
            jobs.push(
                number, types_of.setdefault(number, f"t{dice.randrange(20)}"), priorities[number]
            )
        if not seq % 5:
            jobs.bury(dice.choice(list(jobs.types)))
        if seq % 3:
            types = dice.choice(choices)
            matching = [
                (-priorities[one], one)
                for one, type in jobs.types.items()
                if types is None or type in types
            ]
            assert jobs.claim(types) == (min(matching)[1] if matching else None)


def test_types_that_come_and_go_leave_nothing_behind():
    jobs = Looks()
    for seq in range(10):
        jobs.push(seq, f"t{seq}")
    jobs.claim(frozenset({"another"}))
    jobs.claim(None)
    for seq in range(10, 5 * SLACK):
        jobs.push(seq, "short")
        assert jobs.claim(frozenset({"short"})) == seq
    assert sum(map(len, jobs.ready._firsts)) <= 2 * SLACK
