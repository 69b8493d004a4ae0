"""Every test that only ``make test-nightly`` runs says why: ``@pytest.mark.nightly("reason")``."""

from __future__ import annotations

import pytest

MARKER = "nightly"


@pytest.hookimpl(tryfirst=True)  # before -m leaves them out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker(MARKER)
        if marker and not (marker.args and isinstance(marker.args[0], str) and marker.args[0]):
            raise pytest.UsageError(f"{item.nodeid}: {MARKER} needs a reason, as a string")
