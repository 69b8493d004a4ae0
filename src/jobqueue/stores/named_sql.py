"""Load the named SQL statements of a store from a file in its package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

_PLACE = re.compile(r"\{(\w+)\}")


def load_statements(
    package: str, fragments: Mapping[str, str] = MappingProxyType({}), name: str = "queries.sql"
) -> dict[str, str]:
    """Return the statements in a package's file by name, without their comments.

    A line ``-- name: x`` starts the statement x. In a statement, ``{x}`` is replaced by the
    statement x or the fragment x. Other names in braces stay; the store replaces them.
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
