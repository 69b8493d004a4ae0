"""Apply the table of rules (``access/rules.py``) to every HTTP request before its route runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from jobqueue.access import audit
from jobqueue.access.budgets import MessageBytes, Room
from jobqueue.access.callers import Caller, enter_call
from jobqueue.access.policy import ANY_ROLE, Access, Shown, permit, shown_in
from jobqueue.access.rules import HTTP, MAX_PARAMETERS, RULES, BudgetKind, Rule, http_rule
from jobqueue.access.sessions import session_in
from jobqueue.api.http.errors import OBJECT, OUTCOME, Refuse
from jobqueue.api.http.settings import HttpFaceSettings, is_console
from jobqueue.core.errors import (
    InvalidArgument,
    JobQueueError,
    PermissionDenied,
    Unauthenticated,
)
from jobqueue.core.waiting import answer_room

# Keys of the scope.
CERTIFICATE = "jobqueue.certificate"  # the name in the client's certificate
PLACE = "jobqueue.place"  # the request's Place in the budgets
ROOM = "jobqueue.room"  # the Room of the request's answer
_MATCHED = "jobqueue.matched"  # the route, and the values that it adds to the scope

_STATUS = "server.status"
# For a path that does not exist, the caller needs one role, whichever, and then gets a 404.
_NO_ROUTE = Rule(ANY_ROLE)
# Open routes have no parameters, so their templates are their paths.
OPEN = frozenset(path for (_, path), action in HTTP.items() if RULES[action].roles is None)


class MatchedRoute(BaseRoute):
    """Runs the route that the authorizer has matched already.

    It is the router's first route, so the router does not match the request a second time, perhaps
    with another result.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        matched = scope.get(_MATCHED)
        return (Match.NONE, {}) if matched is None else (Match.FULL, matched[1])

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_MATCHED][0].handle(scope, receive, send)


class HttpAuthorizer:
    """ASGI middleware that admits or refuses a request, and counts the request until it ends."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpFaceSettings,
        routes: Sequence[BaseRoute],
        refuse: Refuse,
    ) -> None:
        self._app = app
        self._refuse = refuse
        self._access = settings.access
        self._budgets = settings.budgets
        self._routes = routes
        self._answers = MessageBytes(settings.max_answer_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["path"] in OPEN and not _is_login(scope)):
            await self._app(scope, receive, send)
            return
        shown = _shown(scope)
        action, rule = self._match(scope)
        try:
            if rule.roles is None:  # a login: the caller is not known yet
                caller = Caller("", frozenset(), shown.address)
            else:
                caller = self._access.identify(shown)
            permit(caller, rule.roles, f"{scope['method']} {scope['path'][:200]}")
            if scope["query_string"].count(b"&") >= MAX_PARAMETERS:
                raise InvalidArgument("query", f"at most {MAX_PARAMETERS} parameters are allowed")
            place = scope[PLACE] = self._budgets.enter(rule.kind, caller.account)
        except JobQueueError as error:
            if shown.may_be_guess or not _is_first_visit(scope, error):
                await self._access.refusals.note(error, shown.address, action, "http")
            await self._refuse(scope, error)(scope, receive, send)
            return
        enter_call(caller)
        room = scope[ROOM] = Room(self._answers, caller.account)
        answer_room.set(room)
        try:
            # A request that only reads reserves memory for its answer first, others do so later.
            if rule.reads and rule.kind is not BudgetKind.WAIT:
                await room.take()
            if rule.changes:
                await self._change(action, scope, receive, send)
            else:
                await self._app(scope, receive, send)
        finally:
            room.close()
            place.leave()

    async def _change(self, action: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a request that changes something, and write its line to the audit log."""
        named = scope[_MATCHED][1].get("path_params", {})
        with audit.change(action, next(iter(named.values()), "")) as line:
            try:
                await self._app(scope, receive, send)
                line.outcome = scope.get(OUTCOME, audit.OK)
            except ClientDisconnect:
                line.outcome = audit.ABANDONED  # the client has disconnected
            finally:
                line.object = scope.get(OBJECT) or line.object

    def _match(self, scope: Scope) -> tuple[str, Rule]:
        """Find the request's route, store it in ``scope``, and return its action and rule."""
        for route in self._routes:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                scope[_MATCHED] = route, child_scope
                verb, template = scope["method"], getattr(route, "path", "")
                return HTTP.get((verb, template), ""), http_rule(verb, template)
        return "", _NO_ROUTE


async def sees_status(access: Access, scope: Scope) -> bool:
    """Return True if the caller of a route that needs no credentials may also GET /status."""
    if not access.required:
        return True
    shown = _shown(scope)
    try:
        permit(access.identify(shown), RULES[_STATUS].roles, "")
    except Unauthenticated as error:
        if shown.may_be_guess:  # slow down guesses
            await access.refusals.note(error, shown.address, _STATUS, "http")
        return False
    except PermissionDenied:
        return False
    return True


def still_admitted(access: Access, scope: Scope, action: str) -> None:
    """Raise Unauthenticated or PermissionDenied if a long answer's caller may not go on reading."""
    permit(access.identify(_shown(scope)), RULES[action].roles, action)


def _is_login(scope: Scope) -> bool:
    """Return True for a login. It needs no credentials, but has a body that the budgets count."""
    return scope["method"] == "POST" and HTTP.get(("POST", scope["path"])) == "server.log_in"


def _is_first_visit(scope: Scope, error: JobQueueError) -> bool:
    """Return True if a request for the console was refused because it has no valid session."""
    return isinstance(error, Unauthenticated) and is_console(scope["path"])


def _shown(scope: Scope) -> Shown:
    client = scope.get("client")
    certificate = scope.get(CERTIFICATE, "")
    shown = shown_in(scope["headers"], certificate, client[0] if client else "")
    if is_console(scope["path"]):
        # Only the console reads the cookie. A browser also sends it with requests that another
        # site's page causes; the console's forms have a token against that, the API has none.
        shown = replace(shown, session=session_in(scope["headers"]))
    return shown
