"""Pages of jobs: order, ties, filters, offsets, bounds."""

from __future__ import annotations

import itertools

import pytest

from jobqueue.core.clock import ManualClock
from jobqueue.core.errors import InvalidArgument
from jobqueue.taskqueue.components.model import Actor, Listing, Sort, Status
from jobqueue.taskqueue.components.state import JobLedger
from tests.taskqueue.protocols.rig import SPEC

ASC, DESC = Sort.CREATED_AT_ASC, Sort.CREATED_AT_DESC
# Ids that are not in the order of creation; those in one tuple are of one millisecond.
GROUPS = [("m", "c", "x"), ("b",), ("z", "a")]


@pytest.fixture
async def ledger() -> JobLedger:
    clock = ManualClock()
    ids = itertools.chain.from_iterable(GROUPS)
    made = JobLedger(clock=clock, new_id=lambda: next(ids))
    for group in GROUPS:
        for _ in group:
            await made.create(SPEC, "", request_id="")
        clock.advance(0.5)
    return made


async def ids(ledger: JobLedger, listing: Listing) -> list[str]:
    return [summary.job_id for summary in (await ledger.list(listing)).jobs]


async def pages(ledger: JobLedger, sort: Sort, limit: int) -> list[list[str]]:
    found = []
    offset: int | None = 0
    while offset is not None:
        page = await ledger.list(Listing(sort=sort, offset=offset, limit=limit))
        found.append([summary.job_id for summary in page.jobs])
        offset = page.next_offset
    return found


@pytest.mark.req("tq:LIST", "tq:FR-5", "tq:LOCK-5", "tq:LOCK-16")
async def test_equal_times_are_ordered_by_id_ascending_in_both_orders(ledger: JobLedger):
    assert await ids(ledger, Listing(sort=ASC)) == ["c", "m", "x", "b", "a", "z"]
    assert await ids(ledger, Listing(sort=DESC)) == ["a", "z", "b", "c", "m", "x"]


@pytest.mark.req("tq:LIST", "tq:LOCK-5")
async def test_the_newest_come_first_unless_asked_otherwise(ledger: JobLedger):
    assert await ids(ledger, Listing()) == await ids(ledger, Listing(sort=DESC))


@pytest.mark.req("tq:LIST", "tq:LOCK-7", "tq:LOCK-16")
@pytest.mark.parametrize("sort", Sort)
@pytest.mark.parametrize("limit", range(1, 8))
async def test_pages_put_together_are_the_listing(ledger: JobLedger, sort, limit):
    found = await pages(ledger, sort, limit)
    assert list(itertools.chain.from_iterable(found)) == await ids(ledger, Listing(sort=sort))
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1], "a last page is never empty: the one before it knew that it was the last"


@pytest.mark.req("tq:LIST", "tq:LOCK-7")
async def test_an_offset_beyond_the_end_is_an_empty_last_page(ledger: JobLedger):
    for offset in (6, 7, 10**17):
        page = await ledger.list(Listing(offset=offset))
        assert page.jobs == ()
        assert page.next_offset is None


@pytest.mark.req("tq:FR-5", "tq:LIST", "tq:LOCK-24")
async def test_filters_choose_and_an_empty_one_chooses_all(ledger: JobLedger):
    await ledger.transition(
        "b", Status.QUEUED, Status.RUNNING, actor=Actor.COORDINATOR, request_id=""
    )
    await ledger.transition("x", Status.QUEUED, Status.CANCELED, actor=Actor.GATEWAY, request_id="")
    only = Listing(statuses=frozenset({Status.RUNNING}), sort=ASC)
    both = Listing(statuses=frozenset({Status.RUNNING, Status.CANCELED}), sort=ASC)
    none = Listing(statuses=frozenset({Status.DONE}), sort=ASC)
    assert await ids(ledger, only) == ["b"]
    assert await ids(ledger, both) == ["x", "b"]
    assert await ids(ledger, none) == []
    assert len(await ids(ledger, Listing())) == 6


@pytest.mark.req("tq:LIST")
async def test_offsets_count_what_the_filter_lets_through(ledger: JobLedger):
    for job_id in ("c", "x", "a"):
        await ledger.transition(
            job_id, Status.QUEUED, Status.CANCELED, actor=Actor.GATEWAY, request_id=""
        )
    canceled = frozenset({Status.CANCELED})
    page = await ledger.list(Listing(canceled, ASC, offset=1, limit=1))
    assert [summary.job_id for summary in page.jobs] == ["x"]
    assert page.next_offset == 2
    page = await ledger.list(Listing(canceled, ASC, offset=2, limit=1))
    assert [summary.job_id for summary in page.jobs] == ["a"]
    assert page.next_offset is None


@pytest.mark.req("tq:LIST", "tq:LOCK-20")
async def test_a_job_that_comes_between_two_pages_shifts_them(ledger: JobLedger):
    first = await ledger.list(Listing(limit=2))
    assert [summary.job_id for summary in first.jobs] == ["a", "z"]
    await ledger.delete_if("a", Status.QUEUED, request_id="")
    assert await ids(ledger, Listing(offset=2, limit=2)) == ["c", "m"]  # b is not seen


@pytest.mark.req("tq:LIST")
async def test_a_page_is_never_longer_than_200_and_0_asks_for_50():
    ledger = JobLedger()
    for _ in range(250):
        await ledger.create(SPEC, "", request_id="")
    for asked, got in ((0, 50), (1, 1), (200, 200), (201, 200), (2**32 - 1, 200)):
        page = await ledger.list(Listing(limit=asked))
        assert len(page.jobs) == got
        assert page.next_offset == got


@pytest.mark.req("tq:LIST")
async def test_numbers_below_zero_are_refused_by_name(ledger: JobLedger):
    with pytest.raises(InvalidArgument, match=r"page\.page_token"):
        await ledger.list(Listing(offset=-1))
    with pytest.raises(InvalidArgument, match=r"page\.page_size"):
        await ledger.list(Listing(limit=-1))


class _Compared(str):
    """An id that counts how often ids are compared."""

    times = 0

    def __lt__(self, other: str) -> bool:
        _Compared.times += 1
        return str.__lt__(self, other)


@pytest.mark.req("tq:LIST")
@pytest.mark.parametrize(
    "asked",
    [Listing(offset=500, limit=20), Listing(frozenset({Status.DONE}))],
    ids=["far away", "none match"],
)
async def test_a_page_costs_the_sorting_of_a_page(asked: Listing):
    clock, numbers = ManualClock(), itertools.count()
    ledger = JobLedger(clock=clock, new_id=lambda: _Compared(f"{next(numbers) * 7 % 1000:04}"))
    for _ in range(100):
        for _ in range(10):
            await ledger.create(SPEC, "", request_id="")
        clock.advance(0.5)
    _Compared.times = 0
    found = (await ledger.list(asked)).jobs
    assert len(found) == (0 if asked.statuses else 20)
    # Two groups of ten: each against each is more than any sort does.
    assert _Compared.times <= 2 * 10 * 10
