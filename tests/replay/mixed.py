"""A world in which everything has happened to some job."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from jobqueue.core.job import Assignment, JobSpec, Transition
from jobqueue.core.lifecycle import Reason, State
from jobqueue.core.queue import Queue
from jobqueue.core.store import Rules
from tests.stores.driver import NO_BACKOFF, Driver, spec

RULES = Rules(key_ttl=600.0, poison_after=2)
WORKERS = ("w1", "wörker 2")
RESULTS = (None, b"", b"\x00\xff binary", b'{"ok": true}')
CaughtUp = Callable[[], Awaitable[None]]


class Mixed:
    """Makes it, and remembers the keys that were used."""

    def __init__(self, driver: Driver, caught_up: CaughtUp) -> None:
        self.driver = driver
        self.keyed: list[JobSpec] = []
        self._caught_up = caught_up
        self._random = random.Random(5)

    async def make(self) -> None:
        await self._queues()
        for _ in range(4):
            await self._submit(45)
            await self._work(30)
            self._tick(self._random.uniform(0.5, 2.0))
            await self.driver.sweep()
        await self._exhausted()
        await self._by_hand()
        await self._remove()
        await self._keys()
        await self._submit(60)
        await self._hold()
        await self._waiting()
        self._check_mixed(await self.driver.all_jobs())

    def _tick(self, seconds: float) -> None:
        self.driver.clock.advance(seconds + 0.000_000_3)  # a clock may be as fine as that

    async def _queues(self) -> None:
        make = self.driver.queue
        await make("mail", priority_weights={0: 1, 5: 3, 9: 6}, max_retries=1, capacity=5_000)
        await make("timed", ttl=400.0, timeout=30.0)
        await make("asleep")
        await make("bare", capacity=7)
        await make("gone")
        await make("again")
        done = await self.driver.submit(queue="again")
        await self._finish(await self.driver.claim_one(queues=("again",)), result=b"first life")
        assert (await self.driver.job(done)).state is State.DONE
        dead = await self.driver.submit(queue="gone", key="k-gone")
        await self.driver.submit(queue="gone")
        (first, *_) = await self.driver.claim(2, queues=("gone",))
        await self.driver.start(first)
        await self.driver.fail(first, "no \N{SNOWMAN}", retryable=False)
        assert (await self.driver.job(dead)).state is State.DEAD_LETTERED
        for seq in await self.driver.store.queues.unfinished("gone", 10):
            await self.driver.do(Transition.dropped_with_queue(seq))
        for name in ("gone", "again"):
            assert await self.driver.store.queues.delete(name) == 0
        self._tick(1.0)
        await make("again", max_retries=9)
        assert await self.driver.store.queues.pause("asleep", True)
        changed = {
            "capacity": 1_000_000, "retry_base": 0.5, "retry_jitter": 0.0, "retention": 5e6,
            "dead_letter_retention": 0.0, "max_running": 50, "rate": 9_000, "rate_burst": 500,
            "key_max_running": 40, "key_weights": {"tenant 1": 2, "*": 1},
        }  # fmt: skip
        assert await self.driver.store.queues.update("again", changed)

    async def _submit(self, count: int) -> None:
        draw = self._random
        specs = []
        for n in range(count):
            one = spec(
                draw.choice((b"", b"x", b"\x00\xfe\xff", draw.randbytes(300))),
                queue=draw.choice(("q", "q", "mail", "timed", "asleep", "again")),
                type=draw.choice(("", "echo", "taskqueue.v1")),
                priority=draw.randrange(10),
                max_retries=draw.choice((None, 0, 2)),
                ttl=draw.choice((None, None, 300.0)),
                timeout=draw.choice((None, 5.5)),
                delay=draw.choice((None, None, None, 900.0)),
                key=None if n % 4 else f"key-{len(self.keyed)}",
                key_owner="" if n % 8 else "web",
                concurrency_key=None if n % 3 else f"tenant {n % 5}",
                labels={} if n % 3 else {"team": "a b", "größe": "\N{SNOWMAN}", "n": str(n)},
            )
            specs.append(one)
            if one.key is not None:
                self.keyed.append(one)
        for result in await self.driver.results(*specs):
            result.unwrap()

    async def _work(self, count: int) -> None:
        """Take jobs, and let each end in another way."""
        queues = ("q", "mail", "timed", "again")
        worker = self._random.choice(WORKERS)
        for n, one in enumerate(await self.driver.claim(count, queues=queues, worker_id=worker)):
            self._tick(0.01)
            await self._one_way(n % 9, one)

    async def _one_way(self, way: int, one: Assignment) -> None:
        driver = self.driver
        if way in (0, 1, 2):
            await self._finish(one, result=self._random.choice(RESULTS))
        elif way == 3:
            await driver.do(
                Transition.succeeded(one.seq, one.lease, b"within one flush", ran_for=0.25)
            )
        elif way == 4:
            await driver.start(one)
            self._tick(0.5)
            await driver.fail(one, f"boom {one.attempt}")
        elif way == 5:
            await driver.fail(one, "not worth it", retryable=False)
        elif way == 6:
            await driver.start(one)
            assert await driver.store.jobs.request_cancel(one.seq)
            await driver.do(Transition.cancel_acknowledged(one.seq, one.lease))
        elif way == 7:
            await driver.start(one)
            await driver.lose(one)
        else:
            await driver.do(Transition.handed_back(one.seq, one.lease))

    async def _finish(self, one: Assignment, result: bytes | None) -> None:
        await self.driver.start(one)
        self._tick(0.125)
        await self.driver.do(Transition.succeeded(one.seq, one.lease, result))

    async def _exhausted(self) -> None:
        """Retried until nothing is left, or until its workers have died under it."""
        await self.driver.store.queues.create(Queue(name="hard", retry_profile=NO_BACKOFF))
        await self.driver.submit(queue="hard", max_retries=1, key="k-hard")
        poison = await self.driver.submit(queue="hard", max_retries=9)
        for attempt in range(2):
            for one in await self.driver.claim(2, queues=("hard",)):
                await self.driver.start(one)
                if one.id == poison:
                    await self.driver.lose(one)
                else:
                    await self.driver.fail(one, f"attempt {attempt}")
            await self.driver.after(9.0)
        assert (await self.driver.job(poison)).reason is Reason.POISON

    async def _by_hand(self) -> None:
        """Dead letters are sent back, and waiting jobs are cancelled."""
        jobs = await self.driver.all_jobs()
        dead = [job for job in jobs if job.state is State.DEAD_LETTERED and job.queue != "gone"]
        for n, job in enumerate(dead):
            if n % 2:
                await self.driver.do(Transition.retried_by_hand(job.seq))
        for n, job in enumerate(job for job in jobs if job.state is State.PENDING):
            if n % 7 == 0:
                await self.driver.do(Transition.cancelled(job.seq))
            if n % 35 == 0:  # and its delay is no more
                await self.driver.do(Transition.retried_by_hand(job.seq))
        await self._work(12)

    async def _remove(self) -> None:
        """Some by hand, which frees their keys; some by age, which does not."""
        await self._caught_up()
        jobs = await self.driver.all_jobs()
        ended = [job for job in jobs if job.state in (State.DONE, State.DEAD_LETTERED)]
        keyed = [job for job in ended if job.key is not None]
        for job in [*keyed[:3], *[job for job in ended if job.key is None][:4]]:
            assert await self.driver.delete(job.id) is not None
        assert await self.driver.prune(self.driver.clock.now() + 1.0, limit=15) == 15

    async def _keys(self) -> None:
        """Time passes; those keys are free, and are taken anew; TTLs end."""
        early = self.keyed[:6]
        self._tick(301.0)
        await self.driver.sweep()
        self._tick(300.0)
        await self.driver.sweep()
        for result in await self.driver.results(*early[:3]):
            result.unwrap()

    async def _hold(self) -> None:
        """Left in the hands of workers: two of them only assigned, one asked to stop."""
        taken = await self.driver.claim(8, queues=("q", "mail"), worker_id=WORKERS[1])
        for one in taken[2:]:
            await self.driver.start(one)
        assert await self.driver.store.jobs.request_cancel(taken[5].seq)

    async def _waiting(self) -> None:
        """Left waiting, or just ended, each in another way."""
        driver = self.driver
        await driver.queue("end")
        for _ in range(4):
            await driver.submit(queue="end", labels={"left": "as it is"})
        back, retried, by_hand, dead = await driver.claim(4, queues=("end",))
        await driver.fail(retried, "once")
        await driver.submit(queue="end", ttl=2_000.0, delay=500.0)
        expired = await driver.submit(queue="end", ttl=3.0)
        cancelled = await driver.submit(queue="end")
        await driver.after(3.0)
        await driver.do(Transition.cancelled((await driver.job(cancelled)).seq))
        assert (await driver.job(expired)).reason is Reason.TTL_EXPIRED
        await driver.do(Transition.handed_back(back.seq, back.lease))
        for one in (by_hand, dead):
            await driver.fail(one, "never", retryable=False)
        await driver.do(Transition.retried_by_hand(by_hand.seq))
        await driver.submit(queue="end", priority=9, max_retries=0)
        await driver.fail(await driver.claim_one(queues=("end",)), "last")
        for delay in (None, 5_000.0):
            await driver.submit(queue="end", priority=9)
            (one,) = await driver.claim(1, queues=("end",))
            await driver.start(one)
            self._tick(0.25)
            await driver.fail(one, "later", retry_after=delay)

    def _check_mixed(self, jobs: list) -> None:
        """Should the draw ever miss something, this says so."""
        states = {job.state for job in jobs}
        assert states == set(State), states
        assert {Reason.CANCELLED, Reason.MANUAL_RETRY, Reason.TTL_EXPIRED, Reason.NOT_RETRYABLE,
                Reason.QUEUE_DELETED, Reason.RETRIES_EXHAUSTED, Reason.HANDED_BACK,
                } <= {job.reason for job in jobs}  # fmt: skip
        assert {job.result for job in jobs if job.state is State.DONE} >= {None, b""}
        pending = [job for job in jobs if job.state is State.PENDING]
        assert any(job.run_at is not None for job in pending)
        assert any(job.retry_count for job in pending)
        assert any(job.expires_at is not None for job in pending)
        assert any(job.cancel_requested for job in jobs if job.state is State.RUNNING)
        assert len(jobs) > 200
