"""Start the programs. This module imports nothing large, so that it can handle Ctrl-C at once.

Python raises an exception for Ctrl-C wherever the main thread happens to be. During the imports,
the exception would print a traceback, or would be lost in a callback that cannot raise.
"""

import signal
import sys
from importlib import import_module


def _run(name: str) -> None:
    # A shell lets programs in the background ignore Ctrl-C: leave that unchanged.
    taken = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if taken:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = import_module(f"jobqueue.cli.{name}")
    if taken:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(program.run())


def ctl() -> None:
    """Run the program ``jq-ctl``."""
    _run("ctl")


def server() -> None:
    """Run the program ``jq-server``."""
    _run("server")


def worker() -> None:
    """Run the program ``jq-worker``."""
    _run("worker")


def service() -> None:
    """Run the program ``jq-service``."""
    _run("service")


def bench() -> None:
    """Run the program ``jq-bench``."""
    _run("bench")
