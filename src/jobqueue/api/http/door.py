"""The middleware that keeps the table of rules."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from jobqueue.access import audit
from jobqueue.access.budgets import MessageBytes, Room
from jobqueue.access.callers import enter_call
from jobqueue.access.policy import ANY_ROLE, Access, Shown, permit, shown_in
from jobqueue.access.rules import HTTP, RULES, Kind, Rule, http_rule
from jobqueue.api.http.errors import OBJECT, OUTCOME, answer
from jobqueue.api.http.settings import HttpSettings
from jobqueue.core.errors import JobQueueError, PermissionDenied, Unauthenticated
from jobqueue.core.waiting import answer_room

CERTIFICATE = "jobqueue.certificate"  # in the scope: the name in the client's certificate

PLACE = "jobqueue.place"  # in the scope: the request's Place in the budgets

ROOM = "jobqueue.room"  # in the scope: what the request's answer takes

_STATUS = "server.status"
_FOUND = "jobqueue.found"  # in the scope: the route, and what it adds to the scope

# What does not exist takes a known caller of any role, who then learns so.
_NOWHERE = Rule(ANY_ROLE)
# A route that is open has no parameters: its template is its path.
OPEN = frozenset(path for (_, path), action in HTTP.items() if RULES[action].roles is None)


class Found(BaseRoute):
    """The route that the door has found.

    It is the router's first one. So no path is matched twice, and the two never disagree.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        found = scope.get(_FOUND)
        return (Match.NONE, {}) if found is None else (Match.FULL, found[1])

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_FOUND][0].handle(scope, receive, send)


class Door:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: HttpSettings, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._access = settings.access
        self._budgets = settings.budgets
        self._routes = routes
        self._answers = MessageBytes(settings.max_answer_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or say why not."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            shown = _shown(scope)
            action, rule = self._asked(scope)
            try:
                caller = self._access.identify(shown)
                permit(caller, rule.roles, f"{scope['method']} {scope['path'][:200]}")
                place = scope[PLACE] = self._budgets.enter(rule.kind, caller.account)
            except JobQueueError as error:
                await self._access.refusals.note(error, shown.address, action, "http")
                await answer(error)(scope, receive, send)
                return
            enter_call(caller)
            room = scope[ROOM] = Room(self._answers, caller.account)
            answer_room.set(room)
            try:
                # Who reads takes room for the answer first. Others take it when they know it.
                if rule.reads and rule.kind is not Kind.WAIT:
                    await room.take()
                if rule.changes:
                    await self._change(action, scope, receive, send)
                else:
                    await self._app(scope, receive, send)
            finally:
                room.close()
                place.leave()
            return
        await self._app(scope, receive, send)

    async def _change(self, action: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The request, with its line in the audit log."""
        named = scope[_FOUND][1].get("path_params", {})
        with audit.change(action, next(iter(named.values()), "")) as line:
            try:
                await self._app(scope, receive, send)
                line.outcome = scope.get(OUTCOME, audit.OK)
            except ClientDisconnect:
                line.outcome = audit.ABANDONED  # there is nobody to answer
            finally:
                line.object = scope.get(OBJECT) or line.object

    def _asked(self, scope: Scope) -> tuple[str, Rule]:
        """The action that is asked for, and its rule."""
        for route in self._routes:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                scope[_FOUND] = route, child_scope
                verb, template = scope["method"], getattr(route, "path", "")
                return HTTP.get((verb, template), ""), http_rule(verb, template)
        return "", _NOWHERE


async def sees_status(access: Access, scope: Scope) -> bool:
    """Whether the caller of a route that is open may know what GET /status says."""
    if not access.required:
        return True
    shown = _shown(scope)
    try:
        permit(access.identify(shown), RULES[_STATUS].roles, "")
    except Unauthenticated as error:
        if shown.authorization or shown.api_key:  # keys must not be guessed here, either
            await access.refusals.note(error, shown.address, _STATUS, "http")
        return False
    except PermissionDenied:
        return False
    return True


def _shown(scope: Scope) -> Shown:
    client = scope.get("client")
    certificate = scope.get(CERTIFICATE, "")
    return shown_in(scope["headers"], certificate, client[0] if client else "")
