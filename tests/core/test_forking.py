"""The lock under which calls begin and processes fork."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from jobqueue.core import forking
from tests import patience


class Member:
    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def before_fork(self) -> bool:
        self._before()
        return True

    def after_fork(self) -> None: ...


def is_free(lock: threading.RLock) -> bool:
    """Whether another thread gets it."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock.acquire(blocking=False))
        if got[0]:
            lock.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return got[0]


def test_a_fork_that_did_not_get_the_lock_does_not_keep_another_from_giving_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forking, "PATIENCE", 0.01)
    forks = forking._Forks()
    closing, go_on = threading.Event(), threading.Event()

    def close() -> None:
        closing.set()
        go_on.wait(patience.longest(10))

    member = Member(close)
    forks.join(member)

    def fork() -> None:
        forks.before()
        forks.in_parent()

    slow = threading.Thread(target=fork)
    slow.start()
    closing.wait(patience.longest(10))
    forks.before()  # in vain
    go_on.set()
    slow.join()
    forks.in_parent()
    assert is_free(forks.lock)


def test_what_runs_in_the_thread_that_forks_does_not_wait_for_the_fork() -> None:
    forks = forking._Forks()
    seen: list[str] = []

    def signal_handler() -> None:
        if forks.lock.acquire(timeout=0):
            seen.append("a call")
            forks.lock.release()
        if len(seen) == 1:
            forks.before()
            seen.append("a fork")
            forks.in_parent()

    member = Member(signal_handler)
    forks.join(member)
    forks.before()
    assert not is_free(forks.lock)  # the fork inside did not give away the outer one's
    forks.in_parent()
    assert seen == ["a call", "a call", "a fork"]
    assert is_free(forks.lock)
