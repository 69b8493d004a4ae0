"""Log people in and out. A session is a cookie that no script can read (``access/sessions.py``)."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from jobqueue.access import audit
from jobqueue.access.callers import Caller, current_caller, enter_call
from jobqueue.access.policy import permit
from jobqueue.access.rules import RULES
from jobqueue.access.sessions import cookie_name
from jobqueue.api.console import rendering
from jobqueue.api.console.console import Console, Form
from jobqueue.core.errors import JobQueueError, Unauthenticated

_ACTION = "server.log_in"
_PAGES = RULES["server.status"].roles  # the roles that may open the console
_IN_PATH = "/?&=%+:,@!$'()*;-._~"
_LONGEST = 2_000


def pages(console: Console) -> None:
    access = console.access

    @console.page("/login")
    async def form(request: Request) -> Response:
        wanted = request.query_params.get("next", "")
        if not access.required:
            return console.go(request, _inside(wanted))
        return _form(console, request, wanted)

    @console.action("/login", is_login=True)
    async def log_in(request: Request, form: Form) -> Response:
        wanted = form.get("next", "")
        address = current_caller().address
        try:
            caller, session = access.log_in(form.get("credential", "").strip())
            caller = Caller(caller.name, caller.roles, address)
            permit(caller, _PAGES, "the console")
        except JobQueueError as error:
            await access.refusals.note(error, address, _ACTION, "http")
            return _form(console, request, wanted, error)
        enter_call(caller)
        audit.write(caller, _ACTION, "", audit.OK)
        answer = console.go(request, _inside(wanted))
        _set_cookie(request, answer, session)
        return answer

    @console.action("/logout")
    async def log_out(request: Request, _: Form) -> Response:
        answer = RedirectResponse(f"{rendering.root(request.scope)}login?did=out", 303)
        _set_cookie(request, answer, "")
        return answer


def _form(
    console: Console, request: Request, wanted: str, error: JobQueueError | None = None
) -> Response:
    """Return the login page. It has no navigation, because there is no caller yet."""
    return rendering.respond(
        request.scope,
        "login.html",
        status=200 if error is None else 401 if isinstance(error, Unauthenticated) else 403,
        token=console.access.sessions.form_token("", ""),
        did=rendering.DONE.get(request.query_params.get("did", ""), ""),
        error=error,
        wanted=_inside(wanted),
        takes_logins=console.access.takes_logins,
    )


def _set_cookie(request: Request, answer: Response, session: str) -> None:
    """Set the session's cookie, or remove it if ``session`` is empty.

    The cookie names no path, so it is for the folder of this page, also behind a proxy.
    """
    host = request.headers.get("host", "").encode("latin-1")
    parts = [f"{cookie_name(host)}={session}", "HttpOnly", "SameSite=Strict"]
    if not session:
        parts.append("Max-Age=0")
    # The browser names the scheme that it uses. A proxy may speak TLS in place of this server.
    if request.headers.get("origin", "").startswith("https:") or request.url.scheme == "https":
        parts.append("Secure")
    answer.headers["Set-Cookie"] = "; ".join(parts)


def _inside(wanted: str) -> str:
    """Return ``wanted``, quoted, if it is an address within the console; else an empty text.

    The result is safe to append to the address of the console's first page.
    """
    return quote(wanted[:_LONGEST].lstrip("/"), safe=_IN_PATH) if ".." not in wanted else ""
