"""Run a jq-server that kills itself when its relay reaches the failpoint that a file names.

Several servers may read the file, but only the publishing server reaches a failpoint and dies.
"""

from __future__ import annotations

import os
import runpy
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from jobqueue.core.observer import armed
from jobqueue.fleet.topologies import SERVER

FAILPOINTS = ("relay.read", "relay.sent", "relay.acked")
ORDERS = "BENCH_DIE_AT"  # the variable that names the file; not a setting, so without JQ_


def _die_if_told(orders: Path, place: str) -> None:
    try:
        told = orders.read_text()
    except FileNotFoundError:
        return
    if told == place:
        orders.unlink()  # the next server must not die
        os.kill(os.getpid(), signal.SIGKILL)


async def _passed(orders: Path, place: str) -> None:
    _die_if_told(orders, place)


def main() -> None:
    """Run a jq-server with the failpoints armed."""
    orders = Path(os.environ[ORDERS])
    with ExitStack() as stack:
        for place in FAILPOINTS:
            stack.enter_context(armed(place, partial(_passed, orders, place)))
        # Run, and not imported: this package must not import the command line.
        runpy.run_module(SERVER, run_name="__main__")


if __name__ == "__main__":
    main()
