"""Reports: coalesced, one call in flight, kept until they are answered."""

import asyncio

import pytest

from jobqueue.core.errors import InvalidArgument, OutcomeUnknown, Unavailable
from jobqueue.core.job import Transition
from jobqueue.core.lifecycle import Move
from tests import patience
from tests.worker.fakes import FakeServer, Worker


async def quick() -> None: ...


async def test_a_job_that_ends_between_two_flushes_is_reported_once(server: FakeServer) -> None:
    async with Worker(server, quick, concurrency=50):
        jobs = [server.job("quick") for _ in range(50)]
        server.hand_out(jobs)
        await server.until(lambda: server.free == 50)
        assert len(server.calls) == 1
        assert {report.move for report in server.reports} == {Move.SUCCEED}


async def test_a_job_that_still_runs_is_reported_as_started(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold):
        job = server.deliver("hold")
        await server.start_of(job)
        release.set()
        await server.end(job)
        assert server.moves(job) == [Move.START, Move.SUCCEED]


async def test_the_next_batch_fills_while_one_is_in_flight(server: FakeServer) -> None:
    async with Worker(server, quick, concurrency=20):
        server.gate.clear()
        server.deliver("quick")
        await server.until(lambda: len(server.calls) == 1)
        for _ in range(19):
            server.deliver("quick")
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(server.calls) == 1
        server.gate.set()
        await server.until(lambda: server.free == 20)
        assert [len(call) for call in server.calls] == [1, 19]


@pytest.mark.parametrize("error", [Unavailable("down"), OutcomeUnknown("lost"), OSError("odd")])
async def test_reports_are_sent_again_until_they_are_answered(
    server: FakeServer, error: Exception
) -> None:
    async with Worker(server, quick) as worker:
        server.errors = [error, error, error]
        job = server.deliver("quick")
        await server.until(lambda: len(server.calls) == 2)
        assert worker._held  # the lease is listed until its end is answered
        assert server.free == 3
        assert (await server.end(job)).move is Move.SUCCEED
        await server.until(lambda: server.free == 4)
        assert len(server.calls) == 4
        assert not worker._held


async def test_a_refused_start_ends_the_attempt_silently(server: FakeServer) -> None:
    stopped = asyncio.Event()

    async def hold() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with Worker(server, hold) as worker:
        server.refuse = lambda report: report.move is Move.START
        job = server.deliver("hold")
        await patience.wait_for(stopped.wait(), 10)
        await server.until(lambda: server.free == 4)
        assert server.moves(job) == [Move.START]
        assert not worker._held


async def test_a_repeated_start_that_is_refused_proves_nothing(server: FakeServer) -> None:
    release = asyncio.Event()

    async def hold() -> None:
        await release.wait()

    async with Worker(server, hold):
        server.errors = [OutcomeUnknown("the answer was lost")]
        server.refuse = lambda report: report.move is Move.START  # it was written the first time
        job = server.deliver("hold")
        await server.start_of(job)
        release.set()
        assert (await server.end(job)).move is Move.SUCCEED


async def test_a_result_that_the_server_refuses_is_a_failure_and_holds_up_no_other(
    server: FakeServer,
) -> None:
    async def speak(word: str) -> str:
        return word

    def check(reports: list[Transition]) -> None:
        if any(report.result == b'"bad"' for report in reports):
            raise InvalidArgument("result", "not that word")

    async with Worker(server, speak, concurrency=10) as worker:
        original = server.report

        async def picky(reports, freed=0):
            server.calls.append(list(reports))
            check(reports)
            return await original(reports, freed)

        server.report = picky  # type: ignore[method-assign]
        words = ["a", "b", "bad", "c", "d"]
        server.hand_out([server.job("speak", f'{{"word": "{w}"}}'.encode()) for w in words])
        await server.until(lambda: server.free == 10)
        assert [report.result for report in server.ends()] == [
            b'"a"',
            b'"b"',
            None,
            b'"c"',
            b'"d"',
        ]
        bad = server.ends()[2]
        assert (bad.move, bad.retryable) == (Move.FAIL, False)
        assert bad.error == "the server refused the result: result: not that word"
        assert not worker._held


async def test_a_report_that_the_server_refuses_for_good_is_dropped(server: FakeServer) -> None:
    async with Worker(server, quick) as worker:
        server.errors = [InvalidArgument("seq", "what is that")]
        server.deliver("quick")
        await server.until(lambda: server.free == 4)
        assert not server.ends()
        assert not worker._held
        assert (await server.end(server.deliver("quick"))).move is Move.SUCCEED


async def test_large_results_travel_in_several_calls(server: FakeServer) -> None:
    async def large() -> str:
        return "x" * 900_000

    async with Worker(server, large, concurrency=10):
        server.hand_out([server.job("large") for _ in range(5)])
        await server.until(lambda: server.free == 10)
        assert [len(call) for call in server.calls] == [2, 2, 1]
        assert len(server.ends()) == 5


async def test_a_slot_is_not_offered_before_its_jobs_end_is_told(server: FakeServer) -> None:
    async def large() -> str:
        return "x" * 900_000

    async with Worker(server, large, concurrency=4):
        original = server.report
        seen: list[tuple[int, int]] = []

        async def watch(reports, freed=0):
            answer = await original(reports, freed)
            seen.append((server.free, len(server.ends())))
            return answer

        server.report = watch  # type: ignore[method-assign]
        server.hand_out([server.job("large") for _ in range(4)])
        await server.until(lambda: server.free == 4)
        assert seen == [(2, 2), (4, 4)]
