"""List jobs by a filter in the address."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from jobqueue.api.console.console import Console
from jobqueue.api.console.formats import read_time
from jobqueue.core.errors import DeadlineExceeded, InvalidArgument, JobQueueError
from jobqueue.core.ids import parse_job_id
from jobqueue.core.job import JobConditions, JobQuery, Page
from jobqueue.core.lifecycle import Reason, State, parse_reasons, parse_state

PAGE = 50
_TIMEOUT = 10.0
_MOST_NAMES = 500  # queues that the page lists to choose from
_WORDS = ("queue", "type", "reason", "error", "since", "until")


@dataclass(slots=True)
class Filter:
    """Holds the filter in a page's address: its texts for the form, and what they mean."""

    texts: dict[str, str]
    states: tuple[State, ...] = ()
    conditions: dict[str, Any] = field(default_factory=dict)
    error: JobQueueError | None = None  # for a text that is not valid

    @classmethod
    def read(cls, params: QueryParams) -> Filter:
        texts = {name: params.get(name, "").strip() for name in _WORDS}
        found = cls(texts)
        now = time.time()
        try:
            found.states = tuple(parse_state(name) for name in params.getlist("status") if name)
            found.conditions = JobConditions(
                queue=texts["queue"] or None,
                type=texts["type"] or None,
                reasons=parse_reasons([texts["reason"]] if texts["reason"] else []),
                error=texts["error"],
                since=read_time(texts["since"], "since", now),
                until=read_time(texts["until"], "until", now),
            ).conditions()
        except JobQueueError as error:
            found.error = error
        return found

    @property
    def is_empty(self) -> bool:
        return not self.states and not any(self.texts.values())

    def address(self, **more: str) -> str:
        """Return the query of the page's address, with further parameters."""
        given = [("status", state.name) for state in self.states]
        given += [(name, text) for name, text in {**self.texts, **more}.items() if text]
        return urlencode(given)


def pages(console: Console) -> None:
    @console.page("/jobs")
    async def show(request: Request) -> Response:
        params = request.query_params
        if wanted := params.get("id", "").strip():
            return console.go(request, f"jobs/{parse_job_id(wanted.lower())}")
        chosen = Filter.read(params)
        page, error = Page([]), chosen.error
        if error is None:
            try:
                page = await console.reads.shared(
                    request,
                    ("jobs", str(request.query_params)),
                    lambda: read_page(console, chosen, params.get("page_token", "")),
                )
            except (InvalidArgument, DeadlineExceeded) as failure:
                error = failure
        queues = await console.reads.list_queues()
        return console.show(
            request,
            "jobs.html",
            error,
            chosen=chosen,
            page=page,
            is_first=not params.get("page_token"),
            queues=[one.queue.name for one in queues[:_MOST_NAMES]],
            reasons=tuple(Reason),
        )


async def read_page(console: Console, chosen: Filter, token: str) -> Page:
    """Read a page of jobs. Raise DeadlineExceeded if that takes too long."""
    query = JobQuery(states=chosen.states, limit=PAGE, page_token=token, **chosen.conditions)
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await console.backend.list_jobs(query)
    except TimeoutError:
        raise DeadlineExceeded(
            f"no page of jobs was found within {_TIMEOUT:g} s; name a queue, states or a time to"
            " search fewer jobs"
        ) from None
