"""Gives the limit of each test the patience of ``tests/patience.py``.

pytest-timeout ends a test that takes longer than its limit. Here the time that counts against the
limit runs slower on a busy machine, so that a test is ended because it hangs and not because it
was given little of the machine. Hypothesis, which has limits of its own, gets none.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pytest_timeout import timeout_sigalrm  # type: ignore[import-untyped]

from tests.patience import Limit

_STEP = 10.0  # seconds between looks at the load: a signal disturbs what the test is doing


def pytest_configure() -> None:
    """Examples of Hypothesis take as long as they take."""
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool | None:
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None  # pytest-timeout's own
    limit = Limit(settings.timeout)

    def arm() -> None:
        signal.setitimer(signal.ITIMER_REAL, max(0.001, min(limit.left(), _STEP)))

    def look(signum: int, frame: object) -> None:
        __tracebackhide__ = True
        if limit.over:
            timeout_sigalrm(item, settings)
        else:
            arm()

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # pytest-timeout calls it after the test
    signal.signal(signal.SIGALRM, look)
    arm()
    return True
