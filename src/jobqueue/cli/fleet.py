"""Show the processes of a topology: as a table for people, and as a document for programs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from jobqueue.cli.display import NONE, style_of
from jobqueue.cli.program import clean, clean_line
from jobqueue.documents import Document, rfc3339
from jobqueue.fleet.keeper import Row
from jobqueue.fleet.state import FleetState

HEADERS = (
    "PROCESS", "ROLE", "PID", "ADDRESS", "HEALTH", "RESTARTS", "UPTIME", "LAST LINE",
)  # fmt: skip
_WIDE = 110  # columns that are enough for whole addresses and log lines
_SHORT = {"RESTARTS": "RST"}
_MINUTE = 60
_HOUR = 3600
_DAY = 86_400


def cells(row: Row) -> list[str]:
    """Return the texts of a unit's row in the table.

    The last text is the detail of the unit's health or, without a detail, the unit's last log line.
    """
    return [
        row.name,
        row.role,
        str(row.pid) if row.pid else NONE,
        row.address or NONE,
        row.health.value,
        str(row.restarts),
        _uptime(row.since),
        clean_line(row.detail or row.last_line) or NONE,
    ]


def _uptime(since: float | None) -> str:
    if since is None:
        return NONE
    seconds = max(0, int(time.time() - since))
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min {seconds % _MINUTE:02} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR} h {seconds % _HOUR // _MINUTE:02} min"
    return f"{seconds // _DAY} d {seconds % _DAY // _HOUR:02} h"


def table(rows: Sequence[Row], width: int, caption: str = "") -> Table:
    """Return the live table, with one line for each unit in a terminal of any width."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", expand=True,
                 caption=caption or None, caption_justify="left")  # fmt: skip
    narrow = width < _WIDE
    for header in HEADERS:
        if narrow and header == "ROLE":
            continue
        last = header == HEADERS[-1]
        made.add_column(
            _SHORT.get(header, header) if narrow else header,
            justify="right" if header in ("PID", "RESTARTS", "UPTIME") else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last else None,
        )
    for row in rows:
        texts = cells(row)
        if narrow:
            del texts[HEADERS.index("ROLE")]
            texts[HEADERS.index("ADDRESS") - 1] = _host_and_port(row.address) or NONE
        made.add_row(*(Text(clean(text), style=style_of(text)) for text in texts))
    return made


def _host_and_port(address: str) -> str:
    return address.partition("://")[2].partition("/")[0] or address


def state_document(state: FleetState) -> Document:
    """Return the state of a topology as a document for JSON."""
    return {
        "topology": state.topology,
        "condition": state.condition,
        "folder": str(state.folder),
        "logs": str(state.logs),
        "detached": state.detached,
        "supervisor_pid": state.pid,
        "started_at": rfc3339(state.started),
        "http": list(state.http),
        "grpc": list(state.grpc),
        "api": state.api,
        "processes": [_row_document(row) for row in state.rows],
    }


def _row_document(row: Row) -> Document:
    return {
        "name": row.name,
        "role": row.role,
        "pid": row.pid,
        "address": row.address,
        "health": row.health.value,
        "detail": row.detail,
        "restarts": row.restarts,
        "started_at": rfc3339(row.since),
        "log": str(row.log) if row.log else None,
        "last_line": row.last_line,
    }
