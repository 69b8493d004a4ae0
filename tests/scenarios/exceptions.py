"""Where a place does not keep a scenario, and why. Nothing else skips one."""

from __future__ import annotations

import pytest

INLINE_ORDER = "a job has ended before its submit returns: none can wait for a worker"
INLINE_APPS = "each app has jobs of its own: no other app's worker can take them"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("inline", "test_jobs_wait_for_the_worker"): INLINE_ORDER,
    ("inline", "test_an_app_reads_what_another_has_submitted"): INLINE_APPS,
}
"""(place, scenario): the reason."""


def apply(items: list[pytest.Item]) -> None:
    """Skip the exceptions."""
    for item in items:
        place = _place_of(item)
        reason = EXCEPTIONS.get((place, getattr(item, "originalname", item.name)))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"{place}: {reason}"))


def _place_of(item: pytest.Item) -> str:
    made = getattr(item, "callspec", None)
    return "" if made is None else str(made.params.get("place", ""))
