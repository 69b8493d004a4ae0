"""What a task may say about its retries; a mistake shows where the task is defined."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobqueue import Backoff, InvalidArgument, JobQueue, QueueSpec

app = JobQueue("memory://")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (3, (3.0,)),
        (0, (0.0,)),
        (timedelta(minutes=1), (60.0,)),
        ([1, timedelta(seconds=5), 30.5], (1.0, 5.0, 30.5)),
        (Backoff(base=2, max=9), Backoff(base=2, max=9)),
    ],
)
def test_a_backoff_is_a_wait_several_waits_or_a_backoff(said: Any, kept: object) -> None:
    assert app.task(backoff=said)._options.backoff == kept


@pytest.mark.parametrize(
    ("option", "field", "said"),
    [
        ({"backoff": "producer"}, "backoff", "expected seconds, a list of them, or Backoff("),
        ({"backoff": True}, "backoff", "expected seconds"),
        ({"backoff": []}, "backoff", "expected seconds"),
        ({"backoff": [1, None]}, "backoff", "expected seconds"),
        ({"backoff": {1: 2}}, "backoff", "expected seconds"),
        ({"backoff": {1, 2}}, "backoff", "expected seconds"),
        ({"backoff": -1}, "backoff", "-1 is not 0 to"),
        ({"backoff": [1, float("nan")]}, "backoff", "nan is not 0 to"),
        ({"retry_on": "OSError"}, "retry_on", "got 'OSError'"),
        (
            {"retry_on": OSError("x")},
            "retry_on",
            "expected exception classes, as (",
        ),
        ({"retry_on": (OSError, int)}, "retry_on", "got <class 'int'>"),
        ({"retry_on": ()}, "retry_on", "name at least one exception; max_retries=0 retries none"),
        ({"abort_on": [None]}, "abort_on", "got None"),
        (
            {"retry_backoff": 3},
            "retry_backoff",
            "is not an option of a task; allowed: abort_on, ",
        ),
    ],
)
def test_a_mistake_is_told_where_the_task_is_defined(
    option: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        app.task(**option)
    assert refused.value.field == field
    assert said in refused.value.message


def test_one_exception_or_several_are_named() -> None:
    options = app.task(retry_on=OSError, abort_on=[KeyError, ValueError])._options
    assert (options.retry_on, options.abort_on) == ((OSError,), (KeyError, ValueError))


def test_a_declared_queue_is_checked_as_far_as_its_server_is_not_needed() -> None:
    fitting: list[dict[str, Any]] = [{"retry_max": 2.0}, {"retry_base": 400.0}]
    for some in fitting:
        JobQueue("memory://", queues=[QueueSpec(name="q", **some)])
    wrong: list[dict[str, Any]] = [
        {"retry_base": 9.0, "retry_max": 8.0},
        {"retry_jitter": 2.0},
        {"retry_max": 0.5, "retry_profile": "scheduler"},
    ]
    for some in wrong:
        with pytest.raises(InvalidArgument, match="retry_"):
            JobQueue("memory://", queues=[QueueSpec(name="q", **some)])


async def test_operators_change_a_queue_by_name() -> None:
    own = JobQueue("memory://")
    async with own:
        changed = await own.operator.update_queue("default", max_retries=9, retry_base=2.0)
        assert (changed.max_retries, changed.retry_base, changed.capacity) == (9, 2.0, 0)
        back = await own.operator.update_queue("default", max_retries=None)
        assert (back.max_retries, back.retry_base) == (3, 2.0)
        with pytest.raises(InvalidArgument, match="names no setting"):
            await own.operator.update_queue("default")
