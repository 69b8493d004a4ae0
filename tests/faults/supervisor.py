"""Runs jq-workers and starts each again soon after its death.

``WORKERS`` names them and the queue of each: "w0@default w1@default". Everything that a worker
needs is loaded before it is forked, so a start costs milliseconds.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

from jobqueue.cli import worker
from jobqueue.worker.child import die_with

_LOADED = (
    "jobqueue.api.grpc.remote",
    "jobqueue.events.dispatch.worker",
    "jobqueue.stores.redis.store",
    "jobqueue.server.worker",
)
_PAUSE = 0.02  # seconds: a worker that cannot start must not take the whole machine


def start(name: str) -> int:
    """Start a worker with the arguments of this program; returns its pid."""
    supervisor = os.getpid()
    if pid := os.fork():
        return pid
    die_with(supervisor)
    os.environ["JQ_WORKER_ID"], _, os.environ["JQ_WORKER_QUEUES"] = name.partition("@")
    sys.exit(worker.run())


def supervise(*names: str) -> None:
    """Keep these workers running for ever."""
    for module in _LOADED:
        importlib.import_module(module)
    running = {start(name): name for name in names}
    while True:
        pid, _ = os.wait()
        time.sleep(_PAUSE)
        name = running.pop(pid)
        running[start(name)] = name


if __name__ == "__main__":
    supervise(*os.environ["WORKERS"].split())
