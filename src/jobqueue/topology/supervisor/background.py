"""A supervisor in the background, and its parent that waits until all is up."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping

from jobqueue.core.errors import Code, Internal, JobQueueError
from jobqueue.logs import timestamp
from jobqueue.topology.layouts.layout import Layout
from jobqueue.topology.supervisor import folders, state
from jobqueue.topology.supervisor.changes import Changes
from jobqueue.topology.supervisor.detach import Message, Tell, in_background
from jobqueue.topology.supervisor.keeper import Restarts
from jobqueue.topology.supervisor.running import supervise
from jobqueue.topology.supervisor.state import State
from jobqueue.topology.supervisor.supervisor import PortTaken, Supervisor


def launch(
    layout: Layout,
    claim: folders.Claim,
    environ: Mapping[str, str],
    restarts: Restarts,
    on_line: Callable[[str], None],
) -> State:
    """Returns when all is up and goes on by itself; raises what kept it from coming up.

    The claim goes over to the background with the lock that is open.
    """
    log = claim.folder / folders.LOGS / "supervisor.log"

    def body(tell: Tell) -> int:
        return asyncio.run(_run(layout, claim, environ, restarts, tell))

    last: Message = {}
    pid = None
    try:
        for last in in_background(body, log):
            pid = last.get("pid", pid)
            if "line" in last:
                on_line(last["line"])
    except KeyboardInterrupt:
        if pid is not None:
            os.kill(pid, signal.SIGTERM)  # it stops what it has started
        raise
    claim.release()
    if "failed" in last:
        if last["port_taken"]:
            raise PortTaken(last["failed"])
        error = JobQueueError(last["failed"])
        error.code = Code(last["code"])
        raise error
    if "up" not in last:
        raise Internal(f"the supervisor ended without a word; see {log}")
    return state.read(claim.folder)


async def _run(
    layout: Layout,
    claim: folders.Claim,
    environ: Mapping[str, str],
    restarts: Restarts,
    tell: Tell,
) -> int:
    changes = Changes()

    def on_change() -> None:
        for line in changes.lines(supervisor.state().rows):
            tell({"line": line})
            print(f"{timestamp(time.time())} {line}", flush=True)  # noqa: T201 - its log

    supervisor = Supervisor(
        layout, claim, environ, detached=True, restarts=restarts, on_change=on_change
    )
    try:
        await supervise(supervisor, lambda: tell({"up": True, "last": True}), lambda: None)
    except JobQueueError as error:
        taken = isinstance(error, PortTaken)
        tell(
            {
                "failed": error.message,
                "code": error.code.value,
                "port_taken": taken,
                "last": True,
            }
        )
        return 1
    return 0
