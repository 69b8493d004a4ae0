"""Where a place does not keep a scenario, and why. Nothing else skips one."""

from __future__ import annotations

import pytest

INLINE_ORDER = "a job has ended before its submit returns: none can wait for a worker"
INLINE_WATCH = "a job has ended before its submit returns: nobody can look at it while it runs"
INLINE_APPS = "each app has jobs of its own: no other app's worker can take them"
INLINE_WORKERS = "there are no workers: the app itself runs its jobs"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("inline", "test_jobs_wait_for_the_worker"): INLINE_ORDER,
    ("inline", "test_an_app_reads_what_another_has_submitted"): INLINE_APPS,
    ("inline", "test_two_apps_share_a_queue"): INLINE_APPS,
    ("inline", "test_a_job_that_nobody_knows_waits_for_its_worker"): INLINE_ORDER,
    ("inline", "test_a_job_says_that_no_worker_serves_its_queue"): INLINE_ORDER,
    ("inline", "test_a_worker_shows_the_types_that_it_knows"): INLINE_WORKERS,
    ("inline", "test_order_holds_across_types"): INLINE_ORDER,
    ("inline", "test_progress_is_shown_while_the_job_runs_and_gone_with_its_end"): INLINE_WATCH,
    ("inline", "test_a_sync_handler_reports_progress"): INLINE_WATCH,
    ("inline", "test_the_next_attempt_begins_without_progress"): INLINE_WATCH,
    ("inline", "test_a_queue_that_stands_is_changed"): INLINE_ORDER,
    (
        "inline",
        "test_options_of_a_declared_queue_hold_and_change_no_queue_that_exists",
    ): INLINE_APPS,
    ("inline", "test_a_worker_says_which_queue_is_missing_and_takes_it_up"): INLINE_WORKERS,
    ("inline", "test_a_drained_worker_can_be_taken_back"): INLINE_WORKERS,
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
