"""Statements kept in a file beside their store, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

_PLACE = re.compile(r"\{(\w+)\}")


def load_statements(
    package: str, fragments: Mapping[str, str] = MappingProxyType({}), name: str = "queries.sql"
) -> dict[str, str]:
    """Read ``-- name: x`` blocks; the comments in them are for the file's readers.

    ``{x}`` in a block stands for the text of block x, or for a fragment of that name; what names
    neither is the store's to fill.
    """
    text = resources.files(package).joinpath(name).read_text()
    found: dict[str, str] = {}
    for block in text.split("-- name: ")[1:]:
        title, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
        assert title not in found, f"two statements are called {title}"
        found[title] = "\n".join(lines).strip()
    known = {**fragments, **found}
    return {
        title: _PLACE.sub(lambda place: known.get(place[1], place[0]), body)
        for title, body in found.items()
    }
