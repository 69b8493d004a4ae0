"""PENDING -> ASSIGNED."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from jobqueue.core.ids import new_lease
from jobqueue.core.job import Assignment
from jobqueue.core.store import ALL_QUEUES, Claim, Rules, Term, TermEnded
from jobqueue.stores.redis import documents
from jobqueue.stores.redis.leadership import term_of
from jobqueue.stores.redis.runner import Runner

MOST_SLOTS = 500  # of one script
_SORTED_AT_ONCE = 1_000
_FEW = 4  # types


def claims_of(claims: Sequence[Claim]) -> list[tuple[Any, ...]]:
    """Claims as scripts read them. Each slot has the lease that its job would get."""
    return [
        (
            None if ALL_QUEUES in claim.queues else list(claim.queues),
            list(claim.without),
            [(worker, str(new_lease())) for worker in claim.slots],
            _types_of(claim),
        )
        for claim in claims
    ]


def _types_of(claim: Claim) -> list[str] | dict[str, bool] | None:
    """Few types are asked for one by one; of many it is asked whether what is there is of them."""
    if claim.types is None:
        return None
    return list(claim.types) if len(claim.types) <= _FEW else dict.fromkeys(claim.types, True)


def seed() -> int:
    """For drawing by lot: Redis begins every script with the same one."""
    return random.getrandbits(31)


class Claiming:
    """Hands out jobs."""

    def __init__(self, runner: Runner, rules: Rules) -> None:
        self._runner = runner
        self._rules = rules

    async def claim(
        self, claims: Sequence[Claim], term: Term | None, tell: bool
    ) -> list[Assignment]:
        """See ``RedisStore.claim``."""
        assigned: list[Assignment] = []
        parts = _parts(claims)
        while parts:
            part = parts.pop(0)
            said = await self._runner.write(
                "claim",
                (claims_of(part), self._rules.assignment_timeout, seed(), term_of(term), tell),
            )
            if said is None:
                raise TermEnded
            rows, ended = said
            assigned += [documents.assignment(row) for row in rows]
            if ended is not None:  # it had to pass over too many that expired
                parts.insert(0, _rest(part, *ended))
        return assigned

    async def sort_ready(self) -> tuple[int, bool]:
        """Bring a part of what an earlier version left waiting to where claims look for it.

        Returns how many jobs were moved, and whether there are more.
        """
        moved, more = await self._runner.read("sort_ready", (_SORTED_AT_ONCE,))
        return int(moved), bool(more)

    async def standing(
        self, job_ids: Sequence[str] | None, worker_id: str, incarnation: int | None
    ) -> list[Assignment]:
        """See ``RedisStore.standing``."""
        parts: list[list[str] | None] = [None]
        if job_ids is not None:
            starts = range(0, len(job_ids), MOST_SLOTS)
            parts = [list(job_ids[start : start + MOST_SLOTS]) for start in starts]
        life = None if incarnation is None else str(incarnation)
        found: list[Assignment] = []
        for part in parts:
            rows = await self._runner.read("standing", (part, worker_id, life))
            found += [documents.assignment(row) for row in rows]
        return found

    async def repeat(self, older_than: float, limit: int, term: Term) -> int:
        """See ``RedisStore.repeat_assignments``."""
        repeated, left = 0, limit
        while left > 0:
            wanted = min(left, MOST_SLOTS)
            said = await self._runner.write(
                "repeat_assignments", (older_than, wanted, term_of(term))
            )
            if said is None:
                raise TermEnded
            repeated += int(said[0])
            if int(said[1]) < wanted:
                break
            left -= wanted
        return repeated


def _rest(part: Sequence[Claim], number: int, workers: Sequence[bytes]) -> list[Claim]:
    """What is left of claims, of which one was filled but for the slots of these workers."""
    begun, *others = part[number - 1 :]
    return [
        Claim(begun.queues, [one.decode() for one in workers], begun.without, begun.types),
        *others,
    ]


def _parts(claims: Sequence[Claim]) -> list[list[Claim]]:
    parts: list[list[Claim]] = [[]]
    room = MOST_SLOTS
    for claim in claims:
        slots = list(claim.slots)
        while slots:
            if not room:
                parts.append([])
                room = MOST_SLOTS
            now, slots = slots[:room], slots[room:]
            parts[-1].append(Claim(claim.queues, now, claim.without, claim.types))
            room -= len(now)
    return [part for part in parts if part]
