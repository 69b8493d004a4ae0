"""Statements kept in a file beside their store, by name."""

from __future__ import annotations

from importlib import resources


def load_statements(package: str, name: str = "queries.sql") -> dict[str, str]:
    """Read ``-- name: x`` blocks; the comments in them are for the file's readers."""
    text = resources.files(package).joinpath(name).read_text()
    found = {}
    for block in text.split("-- name: ")[1:]:
        title, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
        found[title.strip()] = "\n".join(lines).strip()
    return found
