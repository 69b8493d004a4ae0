"""A jq-server that kills itself where a file says, if its relay comes along there.

Only the server that publishes passes those places: of several that watch the file, that one dies.
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
ORDERS = "BENCH_DIE_AT"  # names the file; no setting of jobqueue, so not JQ_


def _die_if_told(orders: Path, place: str) -> None:
    try:
        told = orders.read_text()
    except FileNotFoundError:
        return
    if told == place:
        orders.unlink()  # the next one is to live
        os.kill(os.getpid(), signal.SIGKILL)


async def _passed(orders: Path, place: str) -> None:
    _die_if_told(orders, place)


def main() -> None:
    """Run it."""
    orders = Path(os.environ[ORDERS])
    with ExitStack() as stack:
        for place in FAILPOINTS:
            stack.enter_context(armed(place, partial(_passed, orders, place)))
        # Run, and not imported: the command line is above this package.
        runpy.run_module(SERVER, run_name="__main__")


if __name__ == "__main__":
    main()
