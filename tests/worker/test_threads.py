"""The thread executor by itself: what no thread has taken yet, and flags raised early."""

import asyncio
import threading

from jobqueue.core.job import Transition
from jobqueue.core.progress import Progress
from jobqueue.tasks.context import Context
from jobqueue.tasks.task import define
from jobqueue.worker.execution import Endings, Execution, Stop
from jobqueue.worker.executors.local import ThreadExecutor
from jobqueue.worker.settings import WorkerSettings
from jobqueue.worker.slots import WaitingSlots
from tests import patience
from tests.worker.fakes import FakeServer


class FakeHost:
    def __init__(self) -> None:
        self.ends: list[Execution] = []
        self.changed = asyncio.Event()

    def begin(self, execution: Execution) -> bool:
        raise AssertionError("a thread begins by itself")

    def begun(self, execution: Execution) -> None:
        self.changed.set()

    def advanced(self, lease: int, progress: Progress) -> None:
        raise AssertionError("no handler here reports progress")

    async def completing(self, execution: Execution, needs_start: bool) -> None:
        raise AssertionError("no handler here ends its attempt itself")

    def ended(self, execution: Execution, report: Transition) -> None:
        self.ends.append(execution)
        self.changed.set()


async def test_a_job_that_no_thread_has_taken_can_be_withdrawn(server: FakeServer) -> None:
    release = threading.Event()
    ran: list[str] = []

    def hold(ctx: Context) -> None:
        ran.append(ctx.job_id)
        release.wait(patience.longest(20))

    host = FakeHost()
    executor = ThreadExecutor(host, Endings(1000), limit=1)
    waiting = WaitingSlots(WorkerSettings(id="w1"))
    one, two, three = (
        Execution(server.job("hold"), define(hold), executor, 0.0, waiting) for _ in range(3)
    )
    for execution in (one, two, three):
        executor.submit(execution)
    await patience.wait_for(host.changed.wait(), 10)
    assert not executor.withdraw(one)
    assert executor.withdraw(two)
    release.set()
    while host.ends != [one, three]:
        host.changed.clear()
        await patience.wait_for(host.changed.wait(), 10)
    assert ran == ["job-1", "job-3"]
    assert two.begun == 0
    await executor.close()


async def test_a_stop_before_the_context_exists_is_not_missed(server: FakeServer) -> None:
    host = FakeHost()
    executor = ThreadExecutor(host, Endings(1000), limit=1)
    waiting = WaitingSlots(WorkerSettings(id="w1"))
    execution = Execution(server.job(), None, executor, 0.0, waiting)
    execution.stop = Stop.CANCELLED
    executor.interrupt(execution)
    assert execution.make_context(host.advanced).cancelled
    await executor.close()
