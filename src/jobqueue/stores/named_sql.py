"""Statements kept in a file beside their store, by name."""

from __future__ import annotations

import re
from importlib import resources

_PLACE = re.compile(r"\{(\w+)\}")


def load_statements(package: str, name: str = "queries.sql") -> dict[str, str]:
    """Read ``-- name: x`` blocks; the comments in them are for the file's readers.

    ``{x}`` in a block stands for the text of block x; what names no block is the store's to fill.
    """
    text = resources.files(package).joinpath(name).read_text()
    found: dict[str, str] = {}
    for block in text.split("-- name: ")[1:]:
        title, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
        assert title not in found, f"two statements are called {title}"
        found[title] = "\n".join(lines).strip()
    return {
        title: _PLACE.sub(lambda place: found.get(place[1], place[0]), body)
        for title, body in found.items()
    }
