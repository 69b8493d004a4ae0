"""Ctrl-C reaches what tests start, also in a run that a shell started in the background.

A shell without job control, as of a script or of make, has its background programs ignore SIGINT;
whatever these start inherits that. Programs rightly leave it at that, so that a test that types
Ctrl-C would wait in vain.
"""

from __future__ import annotations

import contextlib
import signal


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.default_int_handler)
