"""What has changed since the last look, in lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobqueue.topology.supervisor.keeper import Health, Row


class Changes:
    """Remembers how everything was."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Health, str]] = {}

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """One line for each process that changed; none for those that have not begun."""
        found = []
        for row in rows:
            if row.health is Health.STARTING:
                row = replace(row, detail="")  # what does not listen yet is no news
            now = (row.health, row.detail)
            if row.health is not Health.WAITING and self._seen.get(row.name) != now:
                found.append(_line(row))
            self._seen[row.name] = now
        return found


def _line(row: Row) -> str:
    where = f" at {row.address}" if row.health is Health.OK and row.address else ""
    pid = f" (pid {row.pid})" if row.pid else ""
    why = f": {row.detail}" if row.detail else ""
    return f"{row.name} {row.health.value}{where}{pid}{why}"
