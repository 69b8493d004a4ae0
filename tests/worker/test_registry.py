"""Tasks by name, and the built-in ones."""

import pytest

from jobqueue.core.errors import AlreadyExists
from jobqueue.tasks.task import TaskOptions, define
from jobqueue.worker.registry import Registry


def send(to: str) -> None: ...


def sleep() -> None: ...


def test_tasks_are_found_by_name() -> None:
    tasks = Registry()
    task = tasks.add(define(send, options=TaskOptions(queue="mail")))
    assert tasks.get("send") is task
    assert tasks.get("other") is None
    assert tasks.names() == ["echo", "fail", "send", "simulate", "sleep"]
    assert tasks.queues() == ("mail",)
    assert Registry().queues() == ("default",)


def test_a_name_is_taken_once_but_a_builtin_may_be_replaced() -> None:
    tasks = Registry()
    tasks.add(define(send))
    with pytest.raises(AlreadyExists, match="'send' is defined twice"):
        tasks.add(define(send))
    mine = tasks.add(define(sleep))
    assert tasks.get("sleep") is mine


def test_jobs_without_a_type_go_to_the_default() -> None:
    tasks = Registry()
    assert tasks.get("") is tasks.default
    assert tasks.default.name == "echo"
    mine = tasks.add(define(send), default=True)
    assert tasks.get("") is mine
    with pytest.raises(AlreadyExists, match="'send' is"):
        tasks.add(define(sleep), default=True)
