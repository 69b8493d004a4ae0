"""Who has one IPv6 address has 2**64 of them: they count as one caller."""

from __future__ import annotations

import asyncio

import pytest

from jobqueue.access.audit import BURST, Refusals
from jobqueue.access.budgets import Budget, Budgets
from jobqueue.access.callers import Caller, network
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access, Shown
from jobqueue.access.rules import BudgetKind
from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import Unauthenticated, Unavailable

NEIGHBOURS = ["2001:db8:1:2::1", "2001:db8:1:2::2", "2001:db8:1:2:ffff::3", "2001:DB8:1:2::4%eth0"]
ELSEWHERE = "2001:db8:1:3::1"


def unnamed(address: str) -> Caller:
    """A caller of a server that asks nobody for a name."""
    return Access().identify(Shown(address=address))


def test_a_network_has_one_budget() -> None:
    budgets = Budgets({BudgetKind.STREAM: Budget(100, 2)})
    for address in NEIGHBOURS[:2]:
        budgets.enter(BudgetKind.STREAM, unnamed(address).account)
    for address in NEIGHBOURS:
        with pytest.raises(Unavailable, match="address 2001:db8:1:2::/64 has 2 streams"):
            budgets.enter(BudgetKind.STREAM, unnamed(address).account)
    budgets.enter(BudgetKind.STREAM, unnamed(ELSEWHERE).account)


def test_a_network_has_one_rate() -> None:
    limiter = Limiter(1.0, 2, clock=ManualClock())
    granted = [limiter.take(unnamed(address), 1)[0] for address in [*NEIGHBOURS, ELSEWHERE]]
    assert granted == [1, 1, 0, 0, 1]


async def test_a_network_guesses_as_one() -> None:
    """Its wrong credentials are answered late, whichever of its addresses shows them."""
    noted = Refusals(ManualClock())
    wrong = Unauthenticated("unknown key")
    for n in range(BURST):
        await noted.note(wrong, f"2001:db8:1:2::{n:x}", "job.read", "http")
    waiting = asyncio.ensure_future(noted.note(wrong, "2001:db8:1:2:ffff::", "job.read", "http"))
    await noted.note(wrong, ELSEWHERE, "job.read", "http")
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),  # the same caller on a socket for both
        ("::1", "::/64"),
        ("/run/jq:1.sock", "/run/jq:1.sock"),
        ("", ""),
    ],
)
def test_other_addresses_count_each(address: str, counted: str) -> None:
    assert network(address) == counted


def test_a_name_counts_wherever_it_calls_from() -> None:
    calls = [Caller("ops", frozenset(), address) for address in (*NEIGHBOURS, ELSEWHERE)]
    assert {caller.account for caller in calls} == {"name ops"}
