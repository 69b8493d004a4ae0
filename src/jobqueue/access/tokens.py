"""JSON Web Tokens signed with a shared secret (RFC 7519, HMAC algorithms of RFC 7518)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable
from typing import Any

from jobqueue.access.callers import Caller, Role
from jobqueue.core.clock import Clock
from jobqueue.core.errors import InvalidArgument, Unauthenticated

ALGORITHMS: dict[str, Callable[..., Any]] = {
    "HS256": hashlib.sha256,
    "HS384": hashlib.sha384,
    "HS512": hashlib.sha512,
}
MIN_SECRET_BYTES = 32
# The server does not know which client asks: the error names the place in each of them.
HOW_TO_SHOW = (
    "jq-ctl and jq-worker: environment variable JQ_API_KEY; JobQueue: api_key=...;"
    " HTTP: Authorization: Bearer ..."
)
MAX_TOKEN_BYTES = 8 * 1024
LEEWAY = 10.0  # seconds that clocks may differ
_MAX_NAME = 200
_MAX_TIME = 1e15
_ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


class TokenVerifier:
    """Turns a token into the caller that it names."""

    def __init__(
        self, secret: bytes, clock: Clock, *, algorithms: Iterable[str] = ("HS256",), audience: str
    ) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise InvalidArgument("auth.jwt_secret", f"must have {MIN_SECRET_BYTES} or more bytes")
        self._secret = secret
        self._clock = clock
        self._algorithms = frozenset(algorithms)
        self._audience = audience
        unknown = self._algorithms - ALGORITHMS.keys()
        if unknown or not self._algorithms:
            raise InvalidArgument(
                "auth.jwt_algorithms",
                f"{sorted(unknown)} is not allowed; allowed: {', '.join(ALGORITHMS)}",
            )

    def verify(self, token: str) -> Caller:
        """The caller, or Unauthenticated. Claims are looked at only under a good signature."""
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the token is larger than {MAX_TOKEN_BYTES} bytes")
        parts = token.encode("ascii", "replace").split(b".")
        if len(parts) != 3:
            raise not_valid()
        header, body, signature = parts
        algorithm = _document(header).get("alg")
        # The list decides, never the token: so there is no "none", and no public key as a secret.
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise not_valid()
        if "crit" in _document(header):
            raise not_valid()
        expected = hmac.new(self._secret, header + b"." + body, ALGORITHMS[algorithm]).digest()
        if not hmac.compare_digest(expected, _decode(signature)):
            raise not_valid()
        return self._caller(_document(body))

    def _caller(self, claims: dict[str, Any]) -> Caller:
        now = self._clock.now()
        if now >= _time(claims, "exp") + LEEWAY:
            raise Unauthenticated("the token has expired")
        if "nbf" in claims and now < _time(claims, "nbf") - LEEWAY:
            raise Unauthenticated("the token is not valid yet")
        audience = claims.get("aud", [])
        meant_for = [audience] if isinstance(audience, str) else audience
        if not isinstance(meant_for, list):
            raise Unauthenticated("the token's aud must be text or a list")
        if self._audience not in meant_for and (self._audience or meant_for):
            raise Unauthenticated("the token is meant for another audience")
        name = claims.get("sub")
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise Unauthenticated(f"the token's sub must be a name of 1 to {_MAX_NAME} characters")
        return Caller(name, _roles(claims.get("roles", [])))


def _roles(given: Any) -> frozenset[Role]:
    """Roles of other systems may stand beside ours."""
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list):
        raise Unauthenticated("the token's roles must be a list")
    return frozenset(role for role in Role if role.value in words)


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < _MAX_TIME:
        return float(value)  # NaN is not below the bound, either
    raise Unauthenticated(f"the token's {name} must be a time in seconds")


def _document(part: bytes) -> dict[str, Any]:
    try:
        document = json.loads(_decode(part))
    except (ValueError, RecursionError):
        raise not_valid() from None
    if not isinstance(document, dict):
        raise not_valid()
    return document


def _decode(part: bytes) -> bytes:
    if not _ALPHABET.issuperset(part):
        raise not_valid()
    try:
        return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise not_valid() from None


def not_valid() -> Unauthenticated:
    """What to raise for a key or token that nobody has, without a word about why."""
    return Unauthenticated(f"the credential is not valid ({HOW_TO_SHOW})")
