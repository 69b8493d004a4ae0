"""Show dead letters by cause, and retry or delete all that match a filter, step by step."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from fastapi import Request
from starlette.responses import Response

from jobqueue.api.console.console import Console, Form
from jobqueue.api.console.formats import read_time
from jobqueue.api.http.errors import OBJECT
from jobqueue.core.errors import DeadlineExceeded, InvalidArgument, NotFound
from jobqueue.core.grouping import DeadLetterGroups
from jobqueue.core.job import RetryQuery
from jobqueue.core.lifecycle import DEATH_WORDS, State, parse_deaths
from jobqueue.documents import rfc3339

_TIMEOUT = 10.0
_COUNT_SECONDS = 4.0  # then counting stops, and the number of matching jobs is a lower bound
_WORDS = ("queue", "type", "reason", "error", "since", "until")
_CHANGES = ("retry", "delete")


@dataclass(slots=True)
class DeadFilter:
    """Holds the filter in a page's address or in a form, and the query that it means."""

    texts: dict[str, str]
    query: RetryQuery

    @classmethod
    def read(cls, given: Any) -> DeadFilter:
        texts = {name: str(given.get(name, "")).strip() for name in _WORDS}
        now = time.time()
        query = RetryQuery(
            queue=texts["queue"] or None,
            type=texts["type"] or None,
            error=texts["error"],
            since=read_time(texts["since"], "since", now),
            until=read_time(texts["until"], "until", now),
        )
        query.reasons = parse_deaths([texts["reason"]]) if texts["reason"] else query.reasons
        return cls(texts, query)

    @property
    def is_empty(self) -> bool:
        return not any(self.texts.values())

    def address(self, **changes: str) -> str:
        """Return the filter as the query of a page's address, with some texts replaced."""
        return urlencode({name: text for name, text in {**self.texts, **changes}.items() if text})

    def fixed(self) -> dict[str, str]:
        """Return the texts for a form. Ages like ``2h`` are replaced by fixed times."""
        times = {"since": rfc3339(self.query.since) or "", "until": rfc3339(self.query.until) or ""}
        return {**self.texts, **times}


@dataclass(slots=True)
class BulkWork:
    """Describes a change of many dead letters: what is done, and what is left."""

    what: str  # retry or delete
    fields: dict[str, str]  # of the form that does the next part
    total: int  # dead letters of the queue, or of all queues, at the beginning
    matched: int = 0
    is_exact: bool = True  # False: there may be more that match
    looked_at: int = 0
    done: int = 0
    refused: int = 0
    examples: list[Any] = field(default_factory=list)  # some that were refused
    is_over: bool = False

    @property
    def form(self) -> dict[str, str]:
        """Return the hidden fields of the form that does the next part."""
        counts = ("total", "looked_at", "done", "refused")
        return {**{name: str(getattr(self, name)) for name in counts}, **self.fields}


def pages(console: Console) -> None:
    backend = console.backend

    @console.page("/dlq")
    async def show(request: Request) -> Response:
        params = request.query_params
        found, error, work = DeadLetterGroups(), None, None
        chosen = DeadFilter({name: params.get(name, "") for name in _WORDS}, RetryQuery())
        try:
            chosen = DeadFilter.read(params)
            found = await console.reads.shared(
                request, ("dlq", str(params)), lambda: group(chosen.query)
            )
            if params.get("change") in _CHANGES:
                work = await count(params["change"], chosen)
        except (InvalidArgument, DeadlineExceeded, NotFound) as failure:
            error = failure
        queues = await console.reads.list_queues()
        return console.show(
            request,
            "dead.html",
            error,
            chosen=chosen,
            found=found,
            work=work,
            reasons=tuple(DEATH_WORDS),
            queues=[one.queue.name for one in queues],
        )

    async def group(query: RetryQuery) -> DeadLetterGroups:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await backend.group_dead_letters(query)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the dead letters were not read within {_TIMEOUT:g} s; name a queue"
            ) from None

    async def count(what: str, chosen: DeadFilter) -> BulkWork:
        """Count the matching dead letters, for as long as a person waits for it."""
        queues = await console.reads.list_queues()
        total = sum(
            one.depth.get(State.DEAD_LETTERED, 0)
            for one in queues
            if chosen.query.queue in (None, one.queue.name)
        )
        work = BulkWork(what, chosen.fixed(), total)
        query = replace(chosen.query, dry_run=True)
        until = time.monotonic() + _COUNT_SECONDS
        while True:
            part = await backend.retry_dead_letters(query)
            work.matched += part.matched
            query.page_token = part.next_page_token
            if not part.next_page_token:
                return work
            if time.monotonic() > until:
                work.is_exact = False
                return work

    async def change(request: Request, what: str, form: Form) -> Response:
        """Do the next part of a change, and show how far it is."""
        chosen = DeadFilter.read(form)
        request.scope[OBJECT] = chosen.texts["queue"]
        query = replace(chosen.query, page_token=form.get("page_token", ""))
        past = {name: _number(form, name) for name in ("total", "looked_at", "done", "refused")}
        part: Any
        if what == "retry":
            part = await backend.retry_dead_letters(query)
            past["done"] += part.retried
        else:
            part = await backend.delete_dead_letters(query)
            past["done"] += part.deleted
        past["looked_at"] += part.looked_at
        past["refused"] += len(part.refused)
        work = BulkWork(
            what,
            {**chosen.fixed(), "page_token": part.next_page_token},
            past["total"],
            looked_at=past["looked_at"],
            done=past["done"],
            refused=past["refused"],
            examples=part.refused[:5],
            is_over=not part.next_page_token,
        )
        return console.show(request, "bulk.html", chosen=chosen, work=work)

    @console.action("/dlq/retry")
    async def retry(request: Request, form: Form) -> Response:
        return await change(request, "retry", form)

    @console.action("/dlq/delete")
    async def delete(request: Request, form: Form) -> Response:
        return await change(request, "delete", form)


def _number(form: Form, name: str) -> int:
    text = form.get(name, "") or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgument(name, "must be a whole number")
    return int(text)
