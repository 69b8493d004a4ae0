"""Sign and check the sessions of people who log in to the console with a browser.

A session is a signed text in a cookie. It names the caller, and does not contain the key or token
that the caller logged in with. The server stores nothing: servers with the same secret accept each
other's sessions. A session that began with an API key ends when a server no longer has the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from jobqueue.access.callers import Role
from jobqueue.core.clock import Clock, SystemClock
from jobqueue.core.errors import InvalidArgument, Unauthenticated

LONGEST = 12 * 3600.0
"""The seconds after which a person has to log in again."""
MIN_SECRET_BYTES = 32
_COOKIE = "jq_session"
_MAX_BYTES = 4 * 1024
_PORT = re.compile(rb":([0-9]{1,5})$")


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """Describes the caller of a session.

    ``key`` is the tag of the API key with which the caller logged in. After a login with a token,
    ``key`` is empty and ``roles`` are the roles in the token.
    """

    name: str
    roles: frozenset[Role]
    key: str
    ends: float


class ConsoleSessions:
    """Signs sessions, and the form tokens that only the server's own pages contain."""

    def __init__(self, secret: bytes = b"", clock: Clock | None = None) -> None:
        """Set the secret. Without one, sessions are valid until this process ends."""
        if secret and len(secret) < MIN_SECRET_BYTES:
            raise InvalidArgument(
                "auth.session_secret", f"must have {MIN_SECRET_BYTES} or more bytes"
            )
        self._secret = secret or os.urandom(MIN_SECRET_BYTES)
        self._clock = clock or SystemClock()

    def tag(self, digest: bytes) -> str:
        """Return a text that identifies the hash of an API key without showing it."""
        return self._sign(b"key", digest)[:32]

    def begin(
        self, name: str, roles: Iterable[Role], *, digest: bytes | None, ends: float = math.inf
    ) -> str:
        """Return the text of a new session, for the session cookie.

        ``digest`` is the hash of the caller's API key, or None after a login with a token. ``ends``
        is the time when the token expires; the session ends no later.
        """
        content = {
            "name": name,
            "roles": sorted(roles) if digest is None else [],
            "key": "" if digest is None else self.tag(digest),
            "ends": min(ends, self._clock.now() + LONGEST),
            "id": os.urandom(12).hex(),
        }
        body = base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")
        return f"{body.decode()}.{self._sign(b'session', body)}"

    def read(self, text: str) -> ConsoleSession:
        """Return the session in a cookie's text.

        Raise Unauthenticated if the session was not signed with this secret, or has expired.
        """
        body, _, signature = text.partition(".")
        raw = body.encode("ascii", "replace")
        if not hmac.compare_digest(
            self._sign(b"session", raw), signature.encode("ascii", "replace").decode()
        ):
            raise Unauthenticated(
                "this server did not sign the session: log in again (with auth.session_secret,"
                " sessions outlive a restart, and are valid on all servers with the same secret)"
            )
        content = json.loads(base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)))
        if self._clock.now() >= content["ends"]:
            raise Unauthenticated("the session has expired: log in again")
        roles = frozenset(role for role in Role if role in content["roles"])
        return ConsoleSession(content["name"], roles, content["key"], content["ends"])

    def form_token(self, name: str, session: str) -> str:
        """Return the token for the forms of a caller's pages.

        Another site's page cannot read the token, so it cannot send these forms.
        """
        return self._sign(b"form", f"{name}\0{session}".encode(errors="replace"))

    def knows_form(self, name: str, session: str, token: str) -> bool:
        """Return True if ``token`` is the form token of this caller and session."""
        expected = self.form_token(name, session)
        return hmac.compare_digest(expected, token.encode("ascii", "replace").decode())

    def _sign(self, purpose: bytes, content: bytes) -> str:
        return hmac.new(self._secret, purpose + b"\0" + content, hashlib.sha256).hexdigest()


def cookie_name(host: bytes) -> str:
    """Return the cookie's name for a ``Host`` header.

    Browsers share cookies between the ports of a host, so the name contains the port.
    """
    port = _PORT.search(host)
    return _COOKIE if port is None else f"{_COOKIE}_{port[1].decode()}"


def session_in(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the session cookie's text from a request's headers; empty if it has none."""
    host, cookies = b"", b""
    for name, value in headers:
        if name == b"host":
            host = value
        elif name == b"cookie":
            cookies += b"; " + value
    wanted = cookie_name(host)
    for part in cookies.decode("latin-1").split(";"):
        name_, _, value_ = part.strip().partition("=")
        if name_ == wanted and len(value_) <= _MAX_BYTES:
            return value_
    return ""
