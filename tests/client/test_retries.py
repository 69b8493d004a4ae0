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
        ({"backoff": "producer"}, "backoff", "expected seconds, a list of seconds, or Backoff("),
        ({"backoff": True}, "backoff", "expected seconds"),
        ({"backoff": []}, "backoff", "expected seconds"),
        ({"backoff": [1, None]}, "backoff", "expected seconds"),
        ({"backoff": {1: 2}}, "backoff", "expected seconds"),
        ({"backoff": {1, 2}}, "backoff", "expected seconds"),
        ({"backoff": -1}, "backoff", " s, got -1 s"),
        ({"backoff": [1, float("nan")]}, "backoff", " s, got nan s"),
        ({"backoff": 10**400}, "backoff", " s, got inf s"),
        ({"backoff": bytearray(b"5")}, "backoff", "expected seconds"),
        ({"retry_on": "OSError"}, "retry_on", "got 'OSError'"),
        (
            {"retry_on": OSError("x")},
            "retry_on",
            "expected exception classes, like (",
        ),
        ({"retry_on": (OSError, int)}, "retry_on", "got <class 'int'>"),
        ({"retry_on": ()}, "retry_on", "name at least one exception; to retry nothing, set"),
        ({"abort_on": [None]}, "abort_on", "got None"),
        ({"abort_on": b"OSError"}, "abort_on", "got b'OSError'"),
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


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"max_retries": "5"}, "max_retries: expected a whole number, got '5'"),
    ({"max_retries": True}, "max_retries: expected a whole number, got True"),
    ({"max_retries": 1.5}, "max_retries: expected a whole number, got 1.5"),
    ({"capacity": 10.0}, "capacity: expected a whole number, got 10.0"),
    ({"ttl": timedelta(seconds=5)}, "ttl: expected a number of seconds, got datetime.timedelta("),
    ({"timeout": "30"}, "timeout: expected a number of seconds, got '30'"),
    ({"retry_base": "1"}, "retry_base: expected a number of seconds, got '1'"),
    ({"retry_max": [60]}, "retry_max: expected a number of seconds, got [60]"),
    ({"retry_jitter": "0.5"}, "retry_jitter: expected a number from 0 to 1, got '0.5'"),
    ({"retry_profile": 1}, "retry_profile: expected the name of a profile, got 1"),
    ({"priority_weights": {"9": 1}}, "priority_weights: expected weights by priority, as {9: 5, 0"),
    ({"priority_weights": [9, 1]}, "priority_weights: expected weights by priority, as {9: 5, 0"),
    ({"retry_base": 10**400}, "retry_base: must be more than 0 and at most"),
    ({"ttl": 10**400}, "ttl: must be more than 0 and at most"),
]


@pytest.mark.parametrize(("setting", "said"), WRONG_SETTINGS)
async def test_settings_of_a_wrong_type_are_told_and_change_nothing(
    setting: dict[str, Any], said: str
) -> None:
    async with JobQueue("memory://") as own:
        before = (await own.operator.queue_stats("default")).queue
        with pytest.raises(InvalidArgument) as refused:
            await own.operator.update_queue("default", **setting)
        assert str(refused.value).startswith(said)
        with pytest.raises(InvalidArgument) as refused:
            await own.operator.create_queue(QueueSpec(name="new", **setting))
        assert str(refused.value).startswith(said)
        assert [one.queue for one in await own.operator.list_queues()] == [before]


@pytest.mark.parametrize("queues", [5, None, b"mail", {"mail": 1}, QueueSpec(name="mail")])
def test_what_is_no_list_of_queues_is_told(queues: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"queues: expected a list, like \['mail'\], got"):
        JobQueue("memory://", queues=queues)


@pytest.mark.parametrize("queue", [1, None, b"mail", ["mail"]])
def test_what_is_no_queue_is_told(queue: Any) -> None:
    with pytest.raises(InvalidArgument, match="queues: expected names or QueueSpecs, got"):
        JobQueue("memory://", queues=[queue])


def test_a_backoff_too_large_for_a_float_is_told() -> None:
    with pytest.raises(InvalidArgument, match="base: must be more than 0 and at most"):
        Backoff(base=10**400)
