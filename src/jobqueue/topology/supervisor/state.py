"""The state file of a running topology: what ``ps`` shows and ``down`` ends. It has no secrets."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobqueue.core.errors import Conflict, Internal, JobQueueError, NotFound
from jobqueue.topology.layouts.layout import JQ_API, Probe
from jobqueue.topology.supervisor import folders, identity
from jobqueue.topology.supervisor.keeper import Health, Row

_VERSION = 1


@dataclass(frozen=True, slots=True)
class State:
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

    @property
    def logs(self) -> Path:
        """Where the logs are."""
        return self.folder / folders.LOGS

    @property
    def supervised(self) -> bool:
        """Whether the supervisor still runs: it, not one that got its pid."""
        return identity.is_running(self.pid, self.began)

    @property
    def living(self) -> list[Row]:
        """The processes that still run."""
        return [row for row in self.rows if identity.is_running(row.pid, row.began)]

    @property
    def condition(self) -> str:
        """One word: up, starting, orphaned (processes without a supervisor) or stale."""
        if self.supervised:
            return "up" if self.ready else "starting"
        return "orphaned" if self.living else "stale"

    def write(self) -> None:
        """Replace the file at once, readable by its owner only."""
        file = self.folder / folders.STATE
        scratch = file.with_name(f".{file.name}.{os.getpid()}")
        document = {"version": _VERSION, **asdict(self)}
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            json.dump(document, out, default=str, indent=1)
        scratch.replace(file)


def read(folder: Path) -> State:
    """The state of the topology in a folder; NotFound where none is.

    Unavailable where another user may have written it: it names processes that ``down`` ends.
    """
    file = folder / folders.STATE
    try:
        file.lstat()
        folders.check_ours(folder, folder.stat())
        folders.check_ours(file, file.lstat())  # a link is not followed
        document: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        raise NotFound(f"no topology is up in {folder}") from None
    except (OSError, ValueError) as error:
        raise Internal(f"{file} cannot be read: {error}") from error
    if document.pop("version", None) != _VERSION:
        raise Internal(f"{file} was written by another version of jobqueue")
    return State(
        **{
            **document,
            "folder": folder,
            "http": tuple(document["http"]),
            "grpc": tuple(document["grpc"]),
            "rows": tuple(_row(row) for row in document["rows"]),
        }
    )


def _row(document: dict[str, Any]) -> Row:
    probe = document["probe"]
    log = document["log"]
    return Row(
        **{
            **document,
            "health": Health(document["health"]),
            "log": Path(log) if log else None,
            "probe": Probe(**probe) if probe else None,
        }
    )


def refuse_orphans(folder: Path) -> None:
    """Raise Conflict where processes of an earlier time still run without their supervisor."""
    try:
        found = read(folder)
    except JobQueueError:
        return  # nothing, or nothing that can be read
    if living := found.living:
        names = ", ".join(row.name for row in living)
        raise Conflict(
            f"{names} of an earlier `up` still run in {folder}, without their supervisor;"
            f" end them with `jq-ctl down --folder {folder}`"
        )
