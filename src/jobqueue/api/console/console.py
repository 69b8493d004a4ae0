"""Provide what all pages of the console share: registration, forms, answers and shared reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from jobqueue.access.callers import current_caller
from jobqueue.access.sessions import session_in
from jobqueue.api.console import rendering
from jobqueue.api.http.context import ApiContext
from jobqueue.api.http.errors import OUTCOME, answer, headers_of, status_of
from jobqueue.api.http.settings import CONSOLE, KIB, is_console
from jobqueue.core.api import StatusApi
from jobqueue.core.errors import InvalidArgument, JobQueueError, PermissionDenied, Unauthenticated
from jobqueue.core.job import Health, Worker
from jobqueue.core.queue import QueueStats
from jobqueue.core.waiting import LONG, Recent, items_of, turn

FRESH = 1.0
"""Seconds for which all open pages share one read of the queues, the workers and the health."""
LIVE = "x-jobqueue-live"
"""The header with which an open page asks for itself again."""
_MOST_SHARED = 32  # answers in memory for a second
_FORM_BYTES = 64 * KIB
_FORM_FIELDS = 100
_ESCAPE_EFFORT = 4  # bytes that an escaped one counts as, beside its own three
_OWN = ("same-origin", "none")

T = TypeVar("T")
Form = Mapping[str, str]
Page = Callable[[Request], Awaitable[Response]]
Action = Callable[[Request, Form], Awaitable[Response]]


class SharedReads:
    """Reads queues, workers and health for all open pages, at most once in ``FRESH`` seconds."""

    def __init__(self, backend: StatusApi) -> None:
        self._queues = Recent(backend.list_queues, FRESH)
        self._workers = Recent(backend.list_workers, FRESH)
        self._health = Recent(backend.health, FRESH)
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}

    async def list_queues(self) -> list[QueueStats]:
        return await self._queues.read()

    async def list_workers(self) -> list[Worker]:
        return await self._workers.read()

    async def health(self) -> Health:
        return await self._health.read()

    async def shared(self, request: Request, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """Return what ``read`` returns, for an open page that looks for news.

        All open pages with the same key share one read in ``FRESH`` seconds. A page that a person
        opens has a read of its own.
        """
        if LIVE not in request.headers:
            return await read()
        task = self._shared.get(key)
        if task is None:
            if len(self._shared) >= _MOST_SHARED:
                return await read()
            task = self._shared[key] = asyncio.ensure_future(read())
            task.add_done_callback(lambda done: self._keep(key, done))
        found: T = await asyncio.shield(task)
        return found

    def _keep(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # all its pages may be closed

        def drop() -> None:
            if self._shared.get(key) is done:
                del self._shared[key]

        asyncio.get_running_loop().call_later(FRESH, drop)

    def forget(self) -> None:
        """Discard the cached answers, because something was changed."""
        self._shared.clear()
        for one in (self._queues, self._workers, self._health):
            one.forget()


class Console:
    """Registers the routes of the console's pages, and creates their answers."""

    def __init__(self, context: ApiContext) -> None:
        self.context = context
        self.backend = context.backend
        self.access = context.settings.access
        self.reads = SharedReads(context.backend)
        self.router = APIRouter(include_in_schema=False)

    def page(self, path: str) -> Callable[[Page], Page]:
        """Register a page. It must not change anything."""

        def register(page: Page) -> Page:
            self.router.add_api_route(f"{CONSOLE}{path}", page, methods=["GET"])
            return page

        return register

    def action(
        self, path: str, largest: int = _FORM_BYTES, *, is_login: bool = False
    ) -> Callable[[Action], Action]:
        """Register the handler of a form that changes something.

        The form must have the caller's form token. The token of a login form depends on no session.
        """

        def register(action: Action) -> Action:
            async def endpoint(request: Request) -> Response:
                async with self.context.buffers.body(request, largest) as body:
                    if len(body) > LONG:
                        await turn(items_of(len(body) + _ESCAPE_EFFORT * body.count(b"%")))
                    form = _parse(body)
                session = "" if is_login else session_in(request.scope["headers"])
                self._check_token(form, session)
                self.reads.forget()
                try:
                    return await action(request, form)
                finally:
                    self.reads.forget()

            self.router.add_api_route(f"{CONSOLE}{path}", endpoint, methods=["POST"])
            return action

        return register

    def show(
        self, request: Request, template: str, error: JobQueueError | None = None, **values: Any
    ) -> Response:
        """Return a page for the current caller.

        ``error`` is the reason why a change was refused; the page shows the change's form again.
        """
        session = session_in(request.scope["headers"])
        caller = current_caller()
        if error is not None:
            request.scope[OUTCOME] = error.code.value
        return rendering.respond(
            request.scope,
            template,
            status=200 if error is None else status_of(error),
            caller=caller,
            token=self.access.sessions.form_token(caller.name, session),
            did=rendering.DONE.get(request.query_params.get("did", ""), ""),
            session=bool(session) and self.access.required,
            error=error,
            **values,
        )

    def go(self, request: Request, to: str, **query: str) -> Response:
        """Send the browser to another page of the console after a change."""
        url = rendering.root(request.scope) + to
        return RedirectResponse(f"{url}?{urlencode(query)}" if query else url, 303)

    def _check_token(self, form: Form, session: str) -> None:
        name = current_caller().name
        if not self.access.sessions.knows_form(name, session, form.get("token", "")):
            raise PermissionDenied(
                "the form is not from a page that this server has sent to you, or the page is older"
                " than your login or the server's last start: open the page again, and repeat the"
                " change"
            )


def _parse(body: bytes) -> dict[str, str]:
    try:
        text = body.decode("ascii")
        return dict(
            parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_FORM_FIELDS)
        )
    except (UnicodeDecodeError, ValueError):
        raise InvalidArgument(
            "form", f"must be application/x-www-form-urlencoded, with {_FORM_FIELDS} fields at most"
        ) from None


def refusal(scope: Scope, error: JobQueueError) -> Response:
    """Return the answer to a request that failed: a page of the console, or JSON elsewhere."""
    if not is_console(scope["path"]):
        return answer(error)
    if isinstance(error, Unauthenticated) and scope["method"] == "GET":
        return _to_login(scope)
    known = not isinstance(error, Unauthenticated) and "route" in scope
    return rendering.respond(
        scope,
        "error.html",
        status=status_of(error),
        caller=current_caller() if known else None,
        headers=headers_of(error),
        error=error,
    )


def _to_login(scope: Scope) -> Response:
    """Send a browser without a valid session to the login page.

    Browsers send the session's cookie only with requests of the server's own pages. After a click
    on another site's link, the browser first gets a page that requests the same address again.
    """
    site = next((value for name, value in scope["headers"] if name == b"sec-fetch-site"), b"none")
    if site.decode("latin-1") not in _OWN:
        return rendering.respond(scope, "again_from_here.html")
    path = bytes(scope.get("raw_path") or b"").decode("latin-1").removeprefix(f"{CONSOLE}/")
    query = scope["query_string"].decode("latin-1")
    wanted = f"{path}?{query}" if query else path
    to = urlencode({"next": wanted}) if wanted else ""
    return RedirectResponse(f"{rendering.root(scope)}login{'?' if to else ''}{to}", 303)
