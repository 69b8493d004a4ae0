"""Read and write the state file of a running topology.

`ps` shows the file's contents. `down` ends the processes that the file names. The file contains no
secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec

from jobqueue.core.errors import Conflict, Internal, JobQueueError, NotFound
from jobqueue.fleet import folders, processes
from jobqueue.fleet.keeper import Row, UnitHealth, ask
from jobqueue.fleet.layout import JQ_API

_VERSION = 1
_TICK = 0.05
_KILLED_WITHIN = 10.0


@dataclass(frozen=True, slots=True)
class FleetState:
    """Describes a topology, as its supervisor last wrote it to the state file."""

    topology: str
    folder: Path
    detached: bool
    started: float
    ready: bool
    pid: int  # of the supervisor
    began: str | None
    http: tuple[str, ...]
    grpc: tuple[str, ...]
    rows: tuple[Row, ...]
    api: str = JQ_API
    version: int = _VERSION

    @property
    def logs(self) -> Path:
        return self.folder / folders.LOGS

    @property
    def supervised(self) -> bool:
        """Return True if the supervisor that wrote the state file still runs.

        A later process with the same pid does not count.
        """
        return processes.is_running(self.pid, self.began)

    @property
    def living(self) -> list[Row]:
        """Return the rows of the units whose processes still run."""
        return [row for row in self.rows if _runs(row)]

    @property
    def condition(self) -> str:
        """Return "up", "starting", "orphaned" or "stale".

        Orphaned: processes run without their supervisor. Stale: neither the supervisor nor any
        process runs.
        """
        if self.supervised:
            return "up" if self.ready else "starting"
        return "orphaned" if self.living else "stale"

    def write(self) -> None:
        """Replace the state file. Only the file's owner can read the new file."""
        document = msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=1)
        folders.write_private(self.folder / folders.STATE, document.decode())


def read(folder: Path) -> FleetState:
    """Return the state of the topology in a folder.

    Raise NotFound if no topology runs there, and Internal if the state file cannot be read. Raise
    Unavailable if another user may have written the file, because `down` ends the processes that
    the file names.
    """
    file = folder / folders.STATE
    try:
        file.lstat()
        folders.check_owner(folder, folder.stat())
        folders.check_owner(file, file.lstat())  # a link is not followed
        written = file.read_bytes()
        version = msgspec.json.decode(written, type=dict[str, object]).get("version")
        if version != _VERSION:
            raise Internal(
                f"another version of jobqueue wrote {file}: use `jq-ctl` of that version"
            )
        state = msgspec.json.decode(
            written, type=FleetState, dec_hook=lambda kind, text: kind(text)
        )
    except FileNotFoundError:
        raise NotFound(f"no topology is up in {folder}") from None
    except (OSError, ValueError) as error:  # msgspec raises subclasses of ValueError
        raise Internal(f"cannot read {file}: {error}") from error
    return replace(state, folder=folder)


def refuse_orphans(folder: Path) -> None:
    """Raise Conflict if processes of an earlier `up` still run in the folder.

    Such processes have lost their supervisor.
    """
    try:
        living = read(folder).living
    except JobQueueError:
        return  # the state file is missing, or cannot be read
    if living:
        names = ", ".join(row.name for row in living)
        raise Conflict(
            f"{names} of an earlier `up` still run in {folder}, without their supervisor;"
            f" end them with `jq-ctl down --folder {folder}`"
        )


async def look(state: FleetState) -> FleetState:
    """Return the state with the present health of each unit: the state file may be out of date."""
    rows = await asyncio.gather(*(_look(row, state.supervised) for row in state.rows))
    return replace(state, rows=tuple(rows))


async def _look(row: Row, supervised: bool) -> Row:
    row = replace(row, last_line=folders.last_line(row.log) or row.last_line)
    is_ours = row.stop_signal != 0
    if is_ours and not _runs(row):
        row = replace(row, pid=None, since=None)
        # A running supervisor has better knowledge: it restarts the unit, or will see its end.
        return row if supervised else replace(row, health=UnitHealth.STOPPED, detail="")
    if row.probe is None or row.health in (UnitHealth.STARTING, UnitHealth.STOPPING):
        return row
    found = await ask(row.probe)
    return replace(
        row, health=UnitHealth.OK if found.ok else UnitHealth.FAILING, detail=found.detail
    )


def take_down(found: FleetState, environ: Mapping[str, str], timeout: float) -> list[str]:
    """Stop a topology, and kill the processes that still run after ``timeout`` seconds.

    Return the names of the killed processes.
    """
    deadline = time.monotonic() + timeout
    killed = []
    processes.send(found.pid, found.began)
    if not _wait(lambda: not found.supervised, deadline):
        # The supervisor ends before its processes: otherwise it would start them again.
        processes.send(found.pid, found.began, signal.SIGKILL)
        _wait(lambda: not found.supervised, time.monotonic() + _KILLED_WITHIN)
        killed.append("supervisor")
    with contextlib.suppress(JobQueueError):
        found = read(found.folder)  # the last state; a supervisor that ends in order removes it
    rows = sorted(found.living, key=lambda row: row.stage, reverse=True)
    for _, group in groupby(rows, key=lambda row: row.stage):
        killed += _end(list(group), deadline)
    folders.forget(environ, found.folder)
    return killed


def _end(rows: list[Row], deadline: float) -> list[str]:
    for row in rows:
        processes.send(row.pid, row.began, row.stop_signal)
    _wait(lambda: not any(map(_runs, rows)), deadline)
    late = [row for row in rows if _runs(row)]
    for row in late:
        processes.send(row.pid, row.began, signal.SIGKILL)
    _wait(lambda: not any(map(_runs, rows)), time.monotonic() + _KILLED_WITHIN)
    return [row.name for row in late]


def _runs(row: Row) -> bool:
    return processes.is_running(row.pid, row.began)


def _wait(done: Callable[[], bool], deadline: float) -> bool:
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK)
    return True
