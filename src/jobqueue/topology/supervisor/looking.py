"""Looks at a topology from outside: which of its processes run now, and how they are."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from jobqueue.topology.supervisor import identity, probing
from jobqueue.topology.supervisor.keeper import Health, Row
from jobqueue.topology.supervisor.logfile import Tail
from jobqueue.topology.supervisor.state import State


async def look(state: State) -> State:
    """The same topology, as it is now: the file may be old, and its writer dead."""
    rows = await asyncio.gather(*(_look(row, state.supervised) for row in state.rows))
    return replace(state, rows=tuple(rows))


async def _look(row: Row, supervised: bool) -> Row:
    last = Tail(row.log).line() if row.log else ""
    row = replace(row, last_line=last or row.last_line)
    foreign = row.stop_signal == 0  # somebody else's: it has no process of ours
    if not foreign and not identity.is_running(row.pid, row.began):
        if supervised:  # between two runs, or just ended: its supervisor knows
            return replace(row, pid=None, since=None)
        return replace(row, pid=None, since=None, health=Health.STOPPED, detail="")
    if row.probe is None or row.health in (Health.STARTING, Health.STOPPING):
        return row
    found = await probing.ask(row.probe)
    return replace(row, health=Health.OK if found.ok else Health.FAILING, detail=found.detail)
