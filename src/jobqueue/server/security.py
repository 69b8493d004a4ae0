"""Create the objects for access, rate limits, certificates and passwords from the settings."""

from __future__ import annotations

import logging
from pathlib import Path

from jobqueue.access.budgets import DEFAULTS, Budget
from jobqueue.access.files import choose_secret
from jobqueue.access.hosts import is_loopback
from jobqueue.access.keyring import Keyring, parse_keys, read_key_file
from jobqueue.access.limits import Limiter
from jobqueue.access.policy import Access, parse_certificate_roles
from jobqueue.access.rules import BudgetKind
from jobqueue.access.sessions import ConsoleSessions
from jobqueue.access.tls import Credentials, ServerTls, Tls
from jobqueue.access.tokens import TokenVerifier
from jobqueue.config import Settings
from jobqueue.config_section import DbSection, KafkaSection, RedisSection
from jobqueue.connect.extras import needed_by
from jobqueue.core.clock import SystemClock
from jobqueue.core.errors import InvalidArgument

log = logging.getLogger("jobqueue.server")


def access(settings: Settings) -> Access:
    """Create the rules by which a server authenticates its callers.

    Raises InvalidArgument if the settings are incomplete, so that nobody gets access by mistake.
    """
    auth, tls = settings.auth, settings.tls
    given = auth.api_keys.get_secret_value().split(",")
    keys = parse_keys([entry for entry in given if entry.strip()], "auth.api_keys")
    if auth.api_keys_file:
        keys += read_key_file(Path(auth.api_keys_file), "auth.api_keys_file")
    if not keys and (auth.api_keys.get_secret_value() or auth.api_keys_file):
        # An empty list is probably a mistake, and must not disable authentication.
        name = "auth.api_keys_file" if auth.api_keys_file else "auth.api_keys"
        raise InvalidArgument(name, "holds no key; add a key, or remove the setting")
    if tls.client_roles and not tls.client_ca:
        raise InvalidArgument("tls.client_roles", "needs tls.client_ca, which is not set")
    return Access(
        keys=Keyring(keys),
        tokens=_tokens(settings),
        certificates=bool(tls.client_ca),
        certificate_roles=parse_certificate_roles(tls.client_roles, "tls.client_roles"),
        sessions=ConsoleSessions(_session_secret(settings).encode()),
    )


def _session_secret(settings: Settings) -> str:
    auth = settings.auth
    return choose_secret(
        auth.session_secret.get_secret_value(),
        auth.session_secret_file,
        "auth.session_secret",
        "auth.session_secret_file",
    )


def _tokens(settings: Settings) -> TokenVerifier | None:
    auth = settings.auth
    secret = choose_secret(
        auth.jwt_secret.get_secret_value(),
        auth.jwt_secret_file,
        "auth.jwt_secret",
        "auth.jwt_secret_file",
    )
    if not secret and not auth.jwt_keys_file:
        for name in ("jwt_issuer", "jwt_audience", "jwt_max_lifetime"):
            if getattr(auth, name):
                # Without a key, tokens are not checked and callers may not need credentials.
                raise InvalidArgument(f"auth.{name}", "needs auth.jwt_secret or auth.jwt_keys_file")
        return None
    with needed_by("auth.jwt_keys_file", "cryptography"):
        return TokenVerifier(
            secret.encode(),
            SystemClock(),
            keys_file=Path(auth.jwt_keys_file) if auth.jwt_keys_file else None,
            algorithms=auth.jwt_algorithms,
            audience=auth.jwt_audience,
            issuer=auth.jwt_issuer,
            roles_claim=auth.jwt_roles_claim,
            max_lifetime=auth.jwt_max_lifetime,
            leeway=auth.jwt_leeway,
        )


def limiter(settings: Settings) -> Limiter | None:
    """Create the rate limiter for submits; return None if the settings have no rate limit."""
    limits = settings.limits
    return Limiter(limits.submit_rate, limits.submit_burst) if limits.submit_rate else None


def budgets(settings: Settings) -> dict[BudgetKind, Budget]:
    """Return the limits of concurrent calls and streams of a face, by kind of call."""
    limits = settings.limits
    return {
        **DEFAULTS,
        BudgetKind.CALL: Budget(limits.calls, limits.calls_per_caller),
        BudgetKind.WAIT: Budget(limits.waits, limits.waits_per_caller),
        BudgetKind.STREAM: Budget(limits.streams, limits.streams_per_caller),
        BudgetKind.SUBMIT_STREAM: Budget(limits.submit_streams, limits.submit_streams_per_caller),
    }


def server_tls(settings: Settings) -> ServerTls | None:
    """Return the server's certificate and key, checked; None if the server does not use TLS."""
    tls = settings.tls
    if bool(tls.cert) != bool(tls.key):
        missing = "tls.key" if tls.cert else "tls.cert"
        raise InvalidArgument(missing, "is missing: set both tls.cert and tls.key, or none of them")
    if not tls.cert:
        if tls.client_ca:
            raise InvalidArgument("tls.client_ca", "needs tls.cert and tls.key")
        return None
    found = ServerTls(Path(tls.cert), Path(tls.key), Path(tls.client_ca) if tls.client_ca else None)
    found.check()
    return found


def check_exposure(settings: Settings, allowed: Access, tls: ServerTls | None) -> None:
    """Raise InvalidArgument if a face would listen on the network without authentication.

    Log warnings about settings that are probably mistakes.
    """
    if settings.tls.client_ca and not settings.tls.client_roles:
        log.warning(
            "tls.client_ca is set, but tls.client_roles is not: a certificate identifies a caller"
            " but gives no role; set tls.client_roles, like *:client+worker"
        )
    for name, face in (("http", settings.http), ("grpc", settings.grpc)):
        if not face.enabled or is_loopback(face.host):
            continue
        if not allowed.required and not settings.server.insecure:
            raise InvalidArgument(
                f"{name}.host",
                f"{face.host} is open to the network, and callers need no credentials; set"
                " auth.api_keys, auth.jwt_secret, auth.jwt_keys_file or tls.client_ca, or accept"
                " the risk with server.insecure=true",
            )
        if not allowed.required:
            log.warning(
                "%s is open to the network without authentication (%s.host): everybody there can"
                " submit and run jobs",
                face.host,
                name,
            )
        elif tls is None:
            log.warning(
                "%s is open to the network without TLS (%s.host): others can read the callers'"
                " keys; set tls.cert and tls.key",
                face.host,
                name,
            )


def password(of: DbSection | RedisSection | KafkaSection, section: str) -> str:
    """Return the password for PostgreSQL, Redis or Kafka, from its setting or its file.

    The password is empty if none is set.
    """
    name = f"{section}.password"
    return choose_secret(of.password.get_secret_value(), of.password_file, name, f"{name}_file")


def credentials(settings: Settings, api_key: str | None) -> Credentials | None:
    """Return the credentials that a worker sends to its server, or None if none are set."""
    tls = settings.tls
    made = Credentials(
        api_key or None,
        Tls(tls.ca or None, tls.cert or None, tls.key or None)
        if tls.ca or tls.cert or tls.key
        else None,
    )
    return made or None
