"""What may happen to an event stream. After each of these Kafka equals ``job_event``, and the order
of every job's events was kept: ``StreamDiffers`` is raised where that does not hold.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from bench.processes import Server
from bench.progress import Say
from bench.streaming.comparing import Comparison, StreamDiffers
from bench.streaming.dying_server import FAILPOINTS
from bench.streaming.jobs import is_cancelled, spec
from bench.streaming.stage import Play, Stage, Watcher
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import NewJob
from jobqueue.core.store import Rules
from jobqueue.core.stream import JobEvent
from jobqueue.stores.postgres.heads import Heads
from jobqueue.stores.postgres.submitting import Submitting
from jobqueue.topology.backing import PrivateKafka

_POLL = 0.02
_PATIENCE = 60.0
_TRANSACTION = 100  # jobs
_STEP = 0.1  # seconds
_BURST = 0.5  # seconds' worth of jobs at once, at most


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    comparison: Comparison
    seconds: float  # how long whatever was asked about took
    delays: list[float]  # from an event's own time until it was read from Kafka


async def plain(stage: Stage, jobs: int, say: Say) -> Outcome:
    """Nothing happens but work. ``seconds``: from the first submit until all is published."""
    async with stage.play(say) as play:
        began = time.perf_counter()
        await play.load.run(jobs)
        await play.load.settled()
        await play.caught_up()
        took = time.perf_counter() - began
        return Outcome(await play.same(), took, [])


async def outage(
    stage: Stage,
    jobs: int,
    say: Say,
    broker: PrivateKafka,
    seconds: float,
    meanwhile: Callable[[Server], Awaitable[None]] | None = None,
) -> Outcome:
    """Kafka is stopped for a while, under load. ``seconds``: from its return until the stream has
    caught up."""
    async with stage.play(say) as play:
        async with Watcher(stage) as watcher:
            await play.load.run(jobs // 3)
            await watcher.until(bool, "nothing is published")
        await asyncio.to_thread(broker.stop)
        back_at = time.monotonic() + seconds
        await play.load.run(jobs // 3)
        await play.load.settled()  # jobs go on
        if not await play.lag():
            raise StreamDiffers("the stream has everything, and Kafka is away")
        if meanwhile is not None:
            await meanwhile(play.servers[0])
        say("Kafka is away")
        await asyncio.sleep(max(0.0, back_at - time.monotonic()))
        await asyncio.to_thread(broker.start)
        began = time.perf_counter()
        await play.caught_up()
        took = time.perf_counter() - began
        await play.load.run(jobs - 2 * (jobs // 3))
        return Outcome(await play.same(), took, [])


async def killed(stage: Stage, jobs: int, say: Say) -> Outcome:
    """The server that publishes is killed with -9 at each failpoint, and another one goes on.

    ``seconds``: the longest time from a kill until the next one had caught up.
    """
    parts = len(FAILPOINTS) + 1
    longest = 0.0
    async with stage.play(say, servers=parts) as play:
        for died, place in enumerate(FAILPOINTS):
            await play.load.run(jobs // parts)
            stage.orders.write_text(place)
            began = await _a_server_died(play, died + 1)
            await play.caught_up()
            longest = max(longest, time.perf_counter() - began)
        await play.load.run(jobs - jobs // parts * len(FAILPOINTS))
        compared = await play.same()
    if not compared.repeated:
        raise StreamDiffers("killed after Kafka's answer, it repeats what Kafka had: not seen")
    return Outcome(compared, longest, [])


async def _a_server_died(play: Play, count: int) -> float:
    """Wait until so many have; when that was."""
    give_up = time.monotonic() + _PATIENCE
    while len(ends := [one.process.poll() for one in play.servers if one.process.poll()]) < count:
        if time.monotonic() > give_up:
            raise TimeoutError("no server died: none of them publishes")
        await asyncio.sleep(_POLL)
    if set(ends) != {-signal.SIGKILL}:
        raise RuntimeError(f"servers ended with status {ends}")
    return time.perf_counter()


async def reverse(stage: Stage, jobs: int, say: Say) -> Outcome:
    """Of two transactions that enqueue, the one that began and numbered its jobs first commits
    last, when the other's events are in Kafka already; over and over."""
    began = time.perf_counter()
    async with stage.play(say) as play, Watcher(stage) as watcher:
        for first in range(0, jobs, 2 * _TRANSACTION):
            half = min(_TRANSACTION, (jobs - first) // 2)
            async with _enqueueing(stage, range(first, first + half)) as early:
                async with _enqueueing(stage, range(first + half, first + 2 * half)) as late:
                    pass
                await watcher.until(
                    lambda seen, ids=late: all(f"{one}:1" in seen for one in ids),  # type: ignore[misc]
                    "what was committed is not in Kafka",
                )
                if any(f"{one}:1" in watcher.seen for one in early):
                    raise StreamDiffers("what is not committed is in Kafka")
            await play.load.cancel(_to_cancel(first, early) + _to_cancel(first + half, late))
            say(f"{first:,} jobs")
        return Outcome(await play.same(), time.perf_counter() - began, [])


async def left_open(stage: Stage, rate: int, say: Say, seconds: float) -> Outcome:
    """One enqueueing transaction stays open, and other jobs' events appear all the same.

    So many jobs a second come meanwhile. ``delays`` are those of their events, ``seconds`` that of
    the transaction's own after its commit.
    """
    async with stage.play(say) as play, Watcher(stage) as watcher:
        async with _enqueueing(stage, range(1)) as own:
            began = time.monotonic()
            while (elapsed := time.monotonic() - began) < seconds:
                due = min(rate * (elapsed + _STEP) - play.load.submitted, rate * _BURST)
                await play.load.run(int(due))
                await asyncio.sleep(_STEP)
                say(f"{seconds - elapsed:.0f} s to go")
            await play.load.settled()
            await play.caught_up()
            others = dict(watcher.seen)
            if any(record.key in own for record in others.values()):
                raise StreamDiffers("what is not committed is in Kafka")
        committed = time.perf_counter()
        await watcher.until(lambda seen: f"{own[0]}:1" in seen, "it never came")
        took = time.perf_counter() - committed
        delays = [
            record.seen_at - record.item.event.at
            for record in others.values()
            if isinstance(record.item, JobEvent)
        ]
        return Outcome(await play.same(), took, delays)


def _to_cancel(first: int, job_ids: list[str]) -> list[str]:
    return [one for number, one in enumerate(job_ids, first) if is_cancelled(number)]


@asynccontextmanager
async def _enqueueing(stage: Stage, numbers: range) -> AsyncIterator[list[str]]:
    """Jobs that a transaction has written, which is committed in the end; their ids."""
    db: Any = await asyncpg.connect(stage.dsn)
    try:
        async with db.transaction():
            ids = new_job_ids(len(numbers))
            jobs = [NewJob(one, spec(number)) for one, number in zip(ids, numbers, strict=True)]
            submitting = Submitting(jobs, None, Rules(), Heads())
            await submitting.run(db)
            for result in submitting.results:
                assert result is not None
                result.unwrap()
            yield [job.id for job in jobs]
    finally:
        await db.close()
