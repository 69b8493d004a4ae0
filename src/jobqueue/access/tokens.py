"""Verify JSON Web Tokens (RFC 7519), and return the callers that they name.

This module checks the claims against the injected clock. The module ``signatures`` checks the
signatures with PyJWT.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobqueue.access.callers import Caller, Role
from jobqueue.core.clock import Clock
from jobqueue.core.errors import InvalidArgument, Unauthenticated

SHARED_SECRET = ("HS256", "HS384", "HS512")
PUBLIC_KEY = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
ALGORITHMS = (*SHARED_SECRET, *PUBLIC_KEY)
DEFAULT_ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")
MIN_SECRET_BYTES = 32
# The server does not know which client program sent the call: the error explains each program.
HOW_TO_SHOW = (
    "jq-ctl and jq-worker: environment variable JQ_API_KEY; JobQueue: api_key=...;"
    " HTTP: Authorization: Bearer ..."
)
MAX_TOKEN_BYTES = 8 * 1024
LEEWAY = 10.0  # seconds by which clocks may differ
_MAX_NAME = 200
_MAX_TIME = 1e15
_ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


class TokenVerifier:
    """Verifies a token and returns the caller that the token names."""

    def __init__(
        self,
        secret: bytes,
        clock: Clock,
        *,
        keys_file: Path | None = None,
        algorithms: Iterable[str] = DEFAULT_ALGORITHMS,
        audience: str,
        issuer: str = "",
        roles_claim: str = "roles",
        max_lifetime: float = 0.0,
        leeway: float = LEEWAY,
    ) -> None:
        """Set how tokens are checked: by a shared ``secret``, a ``keys_file``, or both.

        ``keys_file`` is a file with public keys. An empty ``secret`` means no shared secret.
        """
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        self._roles_claim = roles_claim
        self._max_lifetime = max_lifetime
        self._leeway = leeway
        allowed = _allowed(algorithms, bool(secret), keys_file is not None)
        if not roles_claim:
            raise InvalidArgument("auth.jwt_roles_claim", "must be the name of a claim")
        if secret and len(secret) < MIN_SECRET_BYTES:
            raise InvalidArgument("auth.jwt_secret", f"must have {MIN_SECRET_BYTES} or more bytes")

        # Only servers with tokens import PyJWT, because the import needs a tenth of a second.
        from jobqueue.access.signatures import SignatureChecker, secret_key

        try:
            shared = [secret_key(secret)] if secret else []
        except ValueError as error:
            raise InvalidArgument("auth.jwt_secret", str(error)) from None
        if keys_file is None:
            self._signatures = SignatureChecker(allowed, lambda: shared)
        else:
            from jobqueue.access.public_keys import KeyFile

            file = KeyFile(keys_file, "auth.jwt_keys_file", clock)
            self._signatures = SignatureChecker(allowed, lambda: shared + file.keys())

    def verify(self, token: str) -> Caller:
        """Return the caller that a valid token names. Raise Unauthenticated for any other token."""
        return self.verify_until(token)[0]

    def verify_until(self, token: str) -> tuple[Caller, float]:
        """Verify a token like ``verify``. Return the caller, and the time when the token expires.

        The claims are read after the signature was checked.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the token is larger than {MAX_TOKEN_BYTES} bytes")
        parts = token.encode("ascii", "replace").split(b".")
        if len(parts) != 3 or not all(map(_ALPHABET.issuperset, parts)):
            raise not_valid()  # PyJWT would accept Base64 padding
        header = _document(_decode(parts[0]))
        algorithm, kid = header.get("alg"), header.get("kid")
        # Keys that the header contains or names (jwk, jku, x5u, x5c) are never used.
        if "crit" in header or not isinstance(algorithm, str) or not isinstance(kid, str | None):
            raise not_valid()
        return self._caller(_document(self._signatures.payload(token, algorithm, kid)))

    def _caller(self, claims: dict[str, Any]) -> tuple[Caller, float]:
        now = self._clock.now()
        ends = _time(claims, "exp")
        if now >= ends + self._leeway:
            raise Unauthenticated("the token has expired")
        if "nbf" in claims and now < _time(claims, "nbf") - self._leeway:
            raise Unauthenticated("the token is not valid yet (nbf)")
        if self._max_lifetime:
            self._check_lifetime(_time(claims, "iat"), ends, now)
        if self._issuer and claims.get("iss") != self._issuer:
            raise Unauthenticated("the token's iss names another issuer than auth.jwt_issuer")
        audience = claims.get("aud", [])
        meant_for = [audience] if isinstance(audience, str) else audience
        if not isinstance(meant_for, list):
            raise Unauthenticated("the token's aud must be text or a list")
        if self._audience not in meant_for if self._audience else "aud" in claims:
            raise Unauthenticated("the token's aud names another audience than auth.jwt_audience")
        name = claims.get("sub")
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise Unauthenticated(f"the token's sub must be a name of 1 to {_MAX_NAME} characters")
        return Caller(name, _roles(claims.get(self._roles_claim, []), self._roles_claim)), ends

    def _check_lifetime(self, issued: float, ends: float, now: float) -> None:
        if now < issued - self._leeway:  # an iat in the future would make any lifetime short
            raise Unauthenticated("the token is not valid yet (iat)")
        if ends - issued > self._max_lifetime:
            raise Unauthenticated(
                f"the token is valid for longer than {self._max_lifetime:g} s (exp - iat);"
                " issue a token with a shorter lifetime"
            )


def _allowed(algorithms: Iterable[str], secret: bool, keys: bool) -> frozenset[str]:
    """Return the algorithms to accept. Raise InvalidArgument if no token could be valid."""
    where = "auth.jwt_algorithms"
    chosen = frozenset(algorithms)
    unknown = chosen - set(ALGORITHMS)
    if unknown or not chosen:
        raise InvalidArgument(
            where, f"{sorted(unknown)} is not allowed; allowed: {', '.join(ALGORITHMS)}"
        )
    if secret and chosen.isdisjoint(SHARED_SECRET):
        raise InvalidArgument(
            where,
            f"has no algorithm for auth.jwt_secret; add one or more of {', '.join(SHARED_SECRET)}",
        )
    if keys and chosen.isdisjoint(PUBLIC_KEY):
        raise InvalidArgument(
            where,
            f"has no algorithm for auth.jwt_keys_file; add one or more of {', '.join(PUBLIC_KEY)}",
        )
    return chosen


def _roles(given: Any, claim: str) -> frozenset[Role]:
    """Return the known roles in a claim. Roles of other systems are ignored."""
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list):
        raise Unauthenticated(f"the token's {claim} must be a list or text")
    return frozenset(role for role in Role if role.value in words)


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, bool) and isinstance(value, int | float) and abs(value) < _MAX_TIME:
        return float(value)  # NaN is not below the limit and is refused, too
    raise Unauthenticated(f"the token's {name} must be a time in seconds since 1970")


def _document(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        raise not_valid() from None
    if not isinstance(document, dict):
        raise not_valid()
    return document


def _decode(part: bytes) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except binascii.Error:
        raise not_valid() from None


def not_valid() -> Unauthenticated:
    """Return the error for an unknown key or invalid token, without the reason."""
    return Unauthenticated(f"the credential is not valid ({HOW_TO_SHOW})")
