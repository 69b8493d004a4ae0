"""What a retry of many dead letters says when others do the same at that time."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from jobqueue.cli import ctl_dlq
from jobqueue.core.job import NotRetried, Retried, RetryQuery
from jobqueue.core.queue import QueueStats


class _Session:
    json = True

    async def within(self, step: Awaitable[Any]) -> Any:
        return await step


class _Busy:
    """Of three that matched, one has no queue, and another operator was faster with one."""

    async def list_queues(self) -> list[QueueStats]:
        return []

    async def retry_dead_letters(self, query: RetryQuery) -> Retried:
        if query.dry_run:
            return Retried(5, 3, 0)
        return Retried(5, 3, 1, [NotRetried("id", "its queue is deleted")])


async def _walked(query: RetryQuery) -> ctl_dlq._Done:
    return await ctl_dlq._walk(cast("Any", _Session()), cast("Any", _Busy()), query, "Retrying")


async def test_a_job_that_another_operator_sent_back_does_not_stay():
    done = await _walked(RetryQuery())
    assert (done.retried, done.refused, done.stayed) == (1, 1, 3)


async def test_in_a_dry_run_all_stay():
    done = await _walked(RetryQuery(dry_run=True))
    assert (done.matched, done.retried, done.stayed) == (3, 0, 5)
