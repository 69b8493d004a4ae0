"""How a test says that it ran on an imitation of what it needs, and so shows nothing about that."""

from __future__ import annotations

from typing import Any

import pytest

_PROPERTY = "stand-in"


def use(node: pytest.Item, imitation: str) -> None:
    node.user_properties.append((_PROPERTY, imitation))


def was_used(report: Any) -> bool:
    """Of a test's report, or of anything else that a run reports."""
    return _PROPERTY in dict(getattr(report, "user_properties", ()))
