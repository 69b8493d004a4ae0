"""Authenticate and authorize callers. Only this module decides on a caller's rights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from jobqueue.access.audit import Refusals, RoleMissing
from jobqueue.access.callers import EVERY_ROLE, Caller, Role, parse_roles
from jobqueue.access.keyring import Keyring, key_digest
from jobqueue.access.sessions import ConsoleSessions
from jobqueue.access.tokens import HOW_TO_SHOW, MAX_TOKEN_BYTES, TokenVerifier, not_valid
from jobqueue.core.errors import InvalidArgument, Unauthenticated

AUTHORIZATION = "authorization"
API_KEY = "x-api-key"
_AUTHORIZATION_BYTES = AUTHORIZATION.encode()
_API_KEY_BYTES = API_KEY.encode()
_BEARER = "bearer "
MAX_NAME = 200  # characters of a caller's name
ANY_NAME = "*"
ANY_ROLE = EVERY_ROLE
"""An action with these allowed roles is open to every known caller."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Holds the credentials that came with a call. The credentials are secret: do not log them."""

    authorization: tuple[str, ...] = field(default=(), repr=False)
    api_key: tuple[str, ...] = field(default=(), repr=False)
    certificate: str = ""  # the name in a client certificate that was verified
    address: str = ""
    session: str = field(default="", repr=False)  # the cookie of the console

    @property
    def may_be_guess(self) -> bool:
        """Return True if the call has an API key or a token, which may be a guess."""
        return bool(self.authorization or self.api_key)

    def secret(self) -> str | None:
        """Return the call's key or token, or None. Raise Unauthenticated if there are several."""
        given = [*self.authorization, *self.api_key]
        if not given:
            return None
        if len(given) > 1:
            raise Unauthenticated("more than one credential was given; send one key or one token")
        if self.api_key:
            return self.api_key[0]
        text = self.authorization[0]
        if text[: len(_BEARER)].lower() != _BEARER:
            raise Unauthenticated("authorization must be: Bearer, a space, the key or token")
        return text[len(_BEARER) :].strip()


def shown_in(headers: Iterable[tuple[bytes, bytes]], certificate: str, address: str) -> Shown:
    """Return the credentials in an HTTP request's headers. Header names must be in lower case."""
    authorization: tuple[str, ...] = ()
    api_key: tuple[str, ...] = ()
    for name, value in headers:
        if name == _AUTHORIZATION_BYTES:
            authorization += (value.decode("latin-1"),)
        elif name == _API_KEY_BYTES:
            api_key += (value.decode("latin-1"),)
    return Shown(authorization, api_key, certificate, address)


class Access:
    """Authenticates callers. Without any means of authentication every caller has every role."""

    def __init__(
        self,
        *,
        keys: Keyring | None = None,
        tokens: TokenVerifier | None = None,
        certificates: bool = False,
        certificate_roles: Mapping[str, frozenset[Role]] | None = None,
        sessions: ConsoleSessions | None = None,
    ) -> None:
        """Set the means of authentication.

        ``certificate_roles`` maps the name in a client certificate to roles; ``*`` stands for all
        other names. A caller with a valid certificate whose name is not mapped has no role.
        """
        self._keys = keys or Keyring(())
        self._tokens = tokens
        self._certificates = certificates
        self._certificate_roles = certificate_roles or {}
        self.sessions = sessions or ConsoleSessions()
        self.refusals = Refusals()

    @property
    def required(self) -> bool:
        return bool(self._keys) or self._tokens is not None or self._certificates

    @property
    def takes_logins(self) -> bool:
        """Return True if a person can log in with an API key or a token."""
        return bool(self._keys) or self._tokens is not None

    def log_in(self, secret: str) -> tuple[Caller, str]:
        """Return the caller of an API key or a token, and the text of a new session."""
        if len(secret) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the credential is larger than {MAX_TOKEN_BYTES} bytes")
        caller = self._keys.find(secret)
        if caller is not None:
            digest = key_digest(secret)
            return caller, self.sessions.begin(caller.name, caller.roles, digest=digest)
        if self._tokens is None:
            raise not_valid()
        caller, ends = self._tokens.verify_until(secret)
        return caller, self.sessions.begin(caller.name, caller.roles, digest=None, ends=ends)

    def asks_certificate(self, shown: Shown) -> bool:
        """Return True if only the client certificate can identify the caller."""
        return self._certificates and not shown.authorization and not shown.api_key

    def identify(self, shown: Shown) -> Caller:
        """Return the caller. Raise Unauthenticated if the call has no valid credential."""
        if not self.required:
            return Caller("", EVERY_ROLE, shown.address)
        secret = shown.secret()
        if secret is not None:
            caller = self._owner(secret)
        elif shown.session and (session := self._of_session(shown)) is not None:
            caller = session
        elif self._certificates and shown.certificate:
            if not shown.certificate.isprintable():  # stores save the name with registrations
                raise Unauthenticated("the certificate's name must be printable")
            caller = self._holder(shown.certificate)
        else:
            raise Unauthenticated(self._what_to_show())
        return Caller(caller.name, caller.roles, shown.address)

    def _of_session(self, shown: Shown) -> Caller | None:
        """Return the caller that the session cookie names.

        If the session is not valid, return None if the call has a client certificate; otherwise
        raise Unauthenticated.
        """
        try:
            session = self.sessions.read(shown.session)
            if not session.key:
                if self._tokens is None:
                    raise Unauthenticated(
                        "the session began with a token, which this server no longer takes: log in"
                        " with an API key"
                    )
                return Caller(session.name, session.roles)
            caller = self._keys.with_tag(self.sessions.tag, session.key)
            if caller is None:
                raise Unauthenticated("the session's API key was removed: log in with another key")
            return caller
        except Unauthenticated:
            if self._certificates and shown.certificate:
                return None
            raise

    def _owner(self, secret: str) -> Caller:
        if len(secret) > MAX_TOKEN_BYTES:
            raise Unauthenticated(f"the credential is larger than {MAX_TOKEN_BYTES} bytes")
        caller = self._keys.find(secret)
        if caller is not None:
            return caller
        if self._tokens is None:
            raise not_valid()
        return self._tokens.verify(secret)

    def _holder(self, name: str) -> Caller:
        if len(name) > MAX_NAME or not name.isprintable():
            raise Unauthenticated(f"the certificate's name must have 1 to {MAX_NAME} characters")
        others = self._certificate_roles.get(ANY_NAME, frozenset())
        return Caller(name, self._certificate_roles.get(name, others))

    def _what_to_show(self) -> str:
        ways = []
        if self._keys or self._tokens is not None:
            ways.append(f"an API key or a token ({HOW_TO_SHOW})")
        if self._certificates:
            ways.append("a client certificate with a common name or a DNS name")
        return f"no credential was given; needed: {' or '.join(ways)}"


def permit(caller: Caller, allowed: Collection[Role] | None, action: str) -> None:
    """Raise PermissionDenied unless the caller has one of the roles in ``allowed``.

    ``None`` allows every caller.
    """
    if allowed is not None and caller.roles.isdisjoint(allowed):
        needed = " or ".join(role for role in Role if role in allowed)
        if not needed:
            raise RoleMissing(f"this server does not allow {action} to any caller", caller)
        # Keys and tokens have roles: a caller without roles sent a certificate.
        hint = "" if caller.roles else "; the setting tls.client_roles gives roles to certificates"
        raise RoleMissing(
            f"{action} needs the role {needed}; {caller.name!r} does not have it{hint}", caller
        )


def parse_certificate_roles(entries: Iterable[str], where: str) -> dict[str, frozenset[Role]]:
    """Parse entries of the form ``name:role+role``. The name may contain colons.

    ``where`` is the setting that contains the entries, for errors.
    """
    found: dict[str, frozenset[Role]] = {}
    for entry in entries:
        name, sep, roles = entry.rpartition(":")
        if not sep or not name.strip():
            raise InvalidArgument(where, f"{entry[:80]!r} does not have the form NAME:ROLE+ROLE")
        try:
            found[name.strip()] = parse_roles(roles)
        except ValueError as error:
            raise InvalidArgument(where, str(error)) from None
    return found
