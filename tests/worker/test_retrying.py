"""Which failures a task has retried, and when: on the loop, in threads and in processes alike."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.core.lifecycle import Move
from jobqueue.core.retry import Backoff
from jobqueue.tasks.context import Abort, RetryLater
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker.execution import kinds, may_retry
from jobqueue.worker.registry import Registry
from tests.worker import handlers
from tests.worker.fakes import FakeServer, Worker

PICKY = TaskOptions(retry_on=(OSError,), abort_on=(ConnectionError,))


@pytest.mark.parametrize(
    ("error", "options", "again"),
    [
        (ValueError(), TaskOptions(), True),
        (ValueError(), PICKY, False),
        (OSError(), PICKY, True),
        (FileNotFoundError(), PICKY, True),
        (ConnectionResetError(), PICKY, False),  # abort_on wins
        (ValueError(), TaskOptions(abort_on=(OSError,)), True),
        (OSError(), TaskOptions(abort_on=(OSError,)), False),
        (Abort("no"), TaskOptions(retry_on=(Exception,)), False),
        (InvalidArgument("a", "no"), TaskOptions(retry_on=(Exception,)), False),
        (RetryLater(1), PICKY, True),  # the handler asked for it
        (RetryLater(1), TaskOptions(abort_on=(Exception,)), True),
        (KeyboardInterrupt(), TaskOptions(retry_on=(Exception,)), False),
    ],
)
def test_an_error_is_retried_or_not(error: BaseException, options: TaskOptions, again: bool):
    assert may_retry(kinds(error), options) is again


async def on_loop(error: str) -> None:
    handlers.throw(error)


def in_thread(error: str) -> None:
    handlers.throw(error)


@pytest.mark.parametrize("executor", ["loop", "thread", "process"])
async def test_every_executor_asks_the_task(server: FakeServer, executor: str) -> None:
    """The process finds the bare function, which knows nothing of the options."""
    fn: Any = {"loop": on_loop, "thread": in_thread, "process": handlers.throw}[executor]
    own: dict[str, Any] = {"executor": "process"} if executor == "process" else {}
    tasks = Registry()
    tasks.add(
        define(
            fn,
            name="throw",
            options=TaskOptions(
                retry_on=(handlers.Passing, OSError),
                abort_on=(handlers.Final,),
                backoff=(1.5, 4.0),
                **own,
            ),
        )
    )

    async def end(error: str, **fields: Any) -> tuple[bool, float | None]:
        job = server.deliver("throw", f'{{"error": "{error}"}}'.encode(), **fields)
        report = await server.end(job)
        assert report.move is Move.FAIL
        return report.retryable, report.retry_after

    async with Worker(server, tasks=tasks):
        assert await end("Passing") == (True, 1.5)
        assert await end("Passing", retry_count=1) == (True, 4.0)
        assert await end("Passing", retry_count=5) == (True, 4.0)
        assert await end("FileNotFoundError") == (True, 1.5)
        assert await end("Final") == (False, None)
        assert await end("ValueError") == (False, None)
        assert await end("RetryLater") == (True, 12.5)
        assert await end("Abort") == (False, None)


async def test_a_timeout_waits_as_the_task_says_and_is_no_exception_of_the_handler(
    server: FakeServer,
) -> None:
    tasks = Registry()
    options = TaskOptions(
        backoff=Backoff(base=8, max=8, jitter=0), retry_on=(OSError,), timeout=0.01
    )
    tasks.add(define(handlers.wait_for_cancel, name="slow", options=options))
    async with Worker(server, tasks=tasks):
        report = await server.end(server.deliver("slow"))
    assert (report.move, report.retryable) == (Move.TIME_OUT, True)
    assert report.retry_after == pytest.approx(8.0)


async def test_a_process_that_dies_is_retried_whatever_the_task_retries(server: FakeServer) -> None:
    tasks = Registry()
    options = TaskOptions(executor="process", retry_on=(OSError,), backoff=(3.0,))
    tasks.add(define(handlers.crash, options=options))
    async with Worker(server, tasks=tasks):
        report = await server.end(server.deliver("crash"))
    assert (report.retryable, report.retry_after) == (True, 3.0)
