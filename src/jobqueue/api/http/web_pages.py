"""Web pages elsewhere must not use this server through a visitor's browser.

A browser says where a request comes from (``Host``, ``Origin``, ``Sec-Fetch-Site``), and a page
can neither leave that out nor change it.
"""

from __future__ import annotations

from starlette.types import Scope

from jobqueue.access.hosts import HostNames, host_of
from jobqueue.api.http.errors import JSON, WrongType
from jobqueue.api.http.settings import HttpSettings
from jobqueue.core.errors import JobQueueError, PermissionDenied

# For people who click a link elsewhere; they tell no secret and change nothing.
_PAGES = frozenset({"/", "/docs"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({b"same-origin", b"none"})  # none: a person typed the address
# A browser asks the server first (CORS) before it sends a body of any other type.
_SENT_UNASKED = frozenset(
    {b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"}
)
_LOOKED_AT = frozenset(
    {b"host", b"origin", b"content-type", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"}
)


class WebPages:
    """Refuses what a page elsewhere sent."""

    def __init__(self, settings: HttpSettings) -> None:
        # A page that rebinds a name has no key to show, so any name will do where one is needed:
        # a load balancer may send its own. Client certificates come with TLS, which knows names.
        unchecked = settings.access.required and not settings.allowed_hosts
        self._hosts = HostNames(settings.host, settings.allowed_hosts, any_name=unchecked)

    def refusal(self, scope: Scope) -> JobQueueError | None:
        """Why a request is refused, None if it is not."""
        said: dict[bytes, bytes] = {}
        unasked: bytes | None = None  # the type of a body that a page can send
        for name, value in scope["headers"]:
            if name not in _LOOKED_AT:
                continue
            if name == b"host" and (value not in self._hosts or name in said):
                return self._foreign_host(value)
            if name == b"content-type" and _essence(value) in _SENT_UNASKED:
                unasked = value
            said[name] = value
        origin = said.get(b"origin")
        if origin is not None and not self._is_own(origin, said.get(b"host", b"")):
            return PermissionDenied(
                f"requests from other sites' pages are refused: Origin is {_shown(origin)},"
                " not this server; http.allowed_hosts adds names"
            )
        site = said.get(b"sec-fetch-site", b"none")
        if site not in _OWN_SITES and not _is_click(scope, said):
            return PermissionDenied(
                f"requests from other sites' pages are refused: Sec-Fetch-Site is {_shown(site)};"
                " open the address itself, or call from a program"
            )
        if unasked is not None and scope["method"] not in _SAFE_METHODS:
            return _sent_unasked(unasked)
        return None

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        """Whether the page came from here: from the same host and port, or from a listed name."""
        scheme, _, authority = origin.decode("latin-1").lower().partition("://")
        if scheme not in ("http", "https") or not authority:
            return False
        if authority.encode("latin-1") == host.lower():
            return True
        name = host_of(authority.encode("latin-1"))
        return name is not None and self._hosts.is_listed(name)

    def _foreign_host(self, host: bytes) -> JobQueueError:
        return PermissionDenied(
            f"Host is {_shown(host)}, which is no name of this server (they are: {self._hosts});"
            " if it is one, add it to http.allowed_hosts"
        )


def _is_click(scope: Scope, said: dict[bytes, bytes]) -> bool:
    """Whether a person followed a link to a page that is made for people."""
    return (
        scope["method"] == "GET"
        and scope["path"] in _PAGES
        and said.get(b"sec-fetch-mode") == b"navigate"
        and said.get(b"sec-fetch-dest") == b"document"
    )


def _sent_unasked(kind: bytes) -> JobQueueError:
    return WrongType(
        "Content-Type",
        f"{_shown(kind)} is what any web page can send here through a visitor's browser; send"
        f" Content-Type: {JSON} (curl: -H 'Content-Type: {JSON}')",
    )


def _essence(kind: bytes) -> bytes:
    return kind.partition(b";")[0].strip().lower()


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))
