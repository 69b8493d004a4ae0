"""Where the programs begin: before anything large is imported.

Python turns Ctrl-C into an exception wherever the main thread happens to be. During the imports
it would print a traceback of theirs, or be lost in a callback that cannot raise.
"""

import signal
from importlib import import_module


def _run(name: str) -> None:
    # A shell has programs in the background ignore Ctrl-C: that stays as it is.
    taken = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if taken:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = import_module(f"jobqueue.cli.{name}")
    if taken:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    program.main()


def ctl() -> None:
    """``jq-ctl``."""
    _run("ctl")


def server() -> None:
    """``jq-server``."""
    _run("server")


def worker() -> None:
    """``jq-worker``."""
    _run("worker")


def service() -> None:
    """``jq-service``."""
    _run("service")


def bench() -> None:
    """``jq-bench``."""
    _run("bench")
