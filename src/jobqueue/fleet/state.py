"""The state file of a running topology: `ps` shows it, `down` ends what it names. No secrets."""

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
    """A topology as its supervisor last wrote it."""

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
        """True while the supervisor still runs, not another process with its pid."""
        return processes.is_running(self.pid, self.began)

    @property
    def living(self) -> list[Row]:
        """The units whose processes still run."""
        return [row for row in self.rows if _runs(row)]

    @property
    def condition(self) -> str:
        """One word: up, starting, orphaned (processes without a supervisor) or stale."""
        if self.supervised:
            return "up" if self.ready else "starting"
        return "orphaned" if self.living else "stale"

    def write(self) -> None:
        """Replace the file; only its owner can read it."""
        document = msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=1)
        folders.write_private(self.folder / folders.STATE, document.decode())


def read(folder: Path) -> FleetState:
    """Return the state of the topology in a folder. NotFound: none is up there.

    Unavailable: another user may have written it, and it names processes that `down` ends.
    """
    file = folder / folders.STATE
    try:
        file.lstat()
        folders.check_owner(folder, folder.stat())
        folders.check_owner(file, file.lstat())  # a link is not followed
        written = file.read_bytes()
        version = msgspec.json.decode(written, type=dict[str, object]).get("version")
        if version != _VERSION:
            raise Internal(f"{file} was written by another version of jobqueue")
        state = msgspec.json.decode(
            written, type=FleetState, dec_hook=lambda kind, text: kind(text)
        )
    except FileNotFoundError:
        raise NotFound(f"no topology is up in {folder}") from None
    except (OSError, ValueError) as error:  # of msgspec, too
        raise Internal(f"{file} cannot be read: {error}") from error
    return replace(state, folder=folder)


def refuse_orphans(folder: Path) -> None:
    """Raise Conflict if processes of an earlier `up` still run there without their supervisor."""
    try:
        living = read(folder).living
    except JobQueueError:
        return  # no file, or none that can be read
    if living:
        names = ", ".join(row.name for row in living)
        raise Conflict(
            f"{names} of an earlier `up` still run in {folder}, without their supervisor;"
            f" end them with `jq-ctl down --folder {folder}`"
        )


async def look(state: FleetState) -> FleetState:
    """Return the state as it is now: the file may be old, and its writer dead."""
    rows = await asyncio.gather(*(_look(row, state.supervised) for row in state.rows))
    return replace(state, rows=tuple(rows))


async def _look(row: Row, supervised: bool) -> Row:
    row = replace(row, last_line=folders.last_line(row.log) or row.last_line)
    is_ours = row.stop_signal != 0
    if is_ours and not _runs(row):
        row = replace(row, pid=None, since=None)
        # Its supervisor knows more: it is between two runs, or has just ended.
        return row if supervised else replace(row, health=UnitHealth.STOPPED, detail="")
    if row.probe is None or row.health in (UnitHealth.STARTING, UnitHealth.STOPPING):
        return row
    found = await ask(row.probe)
    return replace(
        row, health=UnitHealth.OK if found.ok else UnitHealth.FAILING, detail=found.detail
    )


def take_down(found: FleetState, environ: Mapping[str, str], timeout: float) -> list[str]:
    """End the topology within the time; return the names of those that had to be killed."""
    deadline = time.monotonic() + timeout
    killed = []
    processes.send(found.pid, found.began)
    if not _wait(lambda: not found.supervised, deadline):
        # Before its processes, or it would start them again.
        processes.send(found.pid, found.began, signal.SIGKILL)
        _wait(lambda: not found.supervised, time.monotonic() + _KILLED_WITHIN)
        killed.append("supervisor")
    with contextlib.suppress(JobQueueError):
        found = read(found.folder)  # the last that it wrote, unless it ended in order
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
