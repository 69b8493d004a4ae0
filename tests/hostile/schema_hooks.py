"""For schemathesis: what a schema can say in words only, requests that end soon, and a check."""

from __future__ import annotations

import contextlib
from typing import Any

import schemathesis

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.lifecycle import VIEWS


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Change a request that would last, or that breaks a rule between two of its fields."""
    query, body = case.query, case.body
    if case.path.endswith("/wait"):  # no job is ever finished: there is no worker
        with contextlib.suppress(TypeError, ValueError):
            query["timeout"] = min(float(query.get("timeout", 0)), 0.01)
    if case.path.endswith("/events") and query.get("watch") in (True, "true"):
        query["watch"] = False
    if "since" in query and "until" in query:  # must be later
        del query["until"]
    if case.path == "/jobs" and isinstance(query.get("status"), list):
        _say_in_words_of_the_view(query)
    for job in _jobs_in(body):
        if job.get("delay") is not None or job.get("run_at") is not None:
            job.pop("ttl", None)  # must be longer
    if isinstance(body, dict) and "/schedules" in case.path:
        if isinstance(body.get("cron"), str) and body["cron"]:
            body["cron"] = "0 3 * * *"
        if isinstance(body.get("timezone"), str) and body["timezone"]:
            body["timezone"] = "UTC"
    if isinstance(body, dict) and "/queues" in case.path:
        _order(body)
        _limit(body, "rate")
        _limit(body, "key_rate")
        ttl: Any = body.get("ttl")
        if _is_number(ttl) and ttl <= MAX_SECONDS:
            body["ttl"] = None  # jobs with a delay are sent to these queues, too


def _say_in_words_of_the_view(query: dict[str, Any]) -> None:
    words = set(VIEWS.get(str(query.get("view", "canonical")), {}).values())
    known = {word for view in VIEWS.values() for word in view.values()}
    said = [str(text).split(",") for text in query["status"]]
    if all(word in known for text in said for word in text):
        kept = [word for text in said for word in text if word in words]
        query["status"] = kept or ["PENDING"]


def _jobs_in(body: Any) -> list[dict[str, Any]]:
    if not isinstance(body, dict):
        return []
    jobs = [body["job"]] if "job" in body else body.get("jobs", [body])
    return [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []


def _order(queue: dict[str, Any]) -> None:
    """The first wait must not be longer than the longest, the profile's where one is not given."""
    least: Any = queue.get("retry_base")
    most: Any = queue.get("retry_max")
    if _is_number(least) and _is_number(most):
        queue["retry_base"], queue["retry_max"] = min(least, most), max(least, most)
    elif _is_number(least) and not most:
        queue["retry_max"] = least
    elif _is_number(most) and not least:
        queue["retry_base"] = most


def _limit(queue: dict[str, Any], rate: str) -> None:
    """Allow a period and a burst only with a rate, and at most 100,000 starts in a second."""
    starts: Any = queue.get(rate)
    period = f"{rate}_period"
    if not _is_number(starts):
        for name in (period, f"{rate}_burst"):
            if _is_number(queue.get(name)):
                queue[name] = None
    elif _is_number(queue.get(period)):
        queue[rate] = 1
        queue[period] = max(queue[period], 1)
    elif starts > 100_000:
        queue[rate] = 100_000


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


@schemathesis.check
def status_is_listed(ctx: Any, response: Any, case: Any) -> None:
    """`default` stands for what goes wrong inside; what a caller may meet has a line of its own."""
    listed = case.operation.definition.raw["responses"]
    known_method = case.method.upper() == case.operation.method.upper()
    if known_method and str(response.status_code) not in listed:
        raise AssertionError(f"{response.status_code} is not listed: {sorted(listed)}")
