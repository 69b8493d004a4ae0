"""The settings of access, TLS and rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr

from jobqueue.config_section import Int, Seconds, Section, SomeNames, secret_file, setting

_API_KEYS = "auth.api_keys"
_HASHED = "sha256="


def _joined(value: object) -> object:
    """The file gives a list, the environment the same separated by commas."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value


class AuthSection(Section):
    api_keys: Annotated[SecretStr, BeforeValidator(_joined)] = setting(
        SecretStr(""),
        "Who may call, as NAME:ROLE+ROLE:KEY separated by commas; the roles are client, worker,"
        " operator and monitor. In the file a list, and in place of each KEY `sha256=` and its"
        " hash.",
    )
    api_keys_file: str = setting(
        "", "File with more of them, one on a line, which only its owner may read."
    )
    jwt_secret: SecretStr = setting(
        SecretStr(""),
        "Secret that tokens (JWT) are signed with, 32 bytes or more; none = no such tokens.",
    )
    jwt_secret_file: str = secret_file("auth.jwt_secret")
    jwt_keys_file: str = setting(
        "",
        "File with the public keys of the tokens' issuer, which only its owner may change: PEM, or"
        " a key set (JWKS) whose keys have names (`kid`). Read again when it changes; none = no"
        " such tokens.",
    )
    jwt_algorithms: SomeNames = setting(
        ["HS256", "RS256", "ES256", "EdDSA"],
        "Signatures that are accepted: HS256, HS384, HS512 with the secret; RS, PS and ES with 256,"
        " 384 or 512, and EdDSA (Ed25519), with a public key of that kind.",
    )
    jwt_issuer: str = setting("", "What a token's `iss` must be; none = it is not looked at.")
    jwt_audience: str = setting("", "What a token's `aud` must name.")
    jwt_roles_claim: str = setting("roles", "The claim that lists a caller's roles.")
    jwt_max_lifetime: Seconds = setting(
        0.0,
        "Longest time that a token may be valid for, from its `iat`, which it must have then, to"
        " its `exp`; 0 = no limit.",
        "s",
        ge=0,
        le=1e9,
    )
    jwt_leeway: Seconds = setting(10.0, "How far the issuer's clock may be off.", "s", ge=0, le=300)


class TlsSection(Section):
    cert: str = setting(
        "",
        "PEM file with the certificate: of jq-server for both its ports, of jq-worker to show to"
        " the server.",
    )
    key: str = setting(
        "", "PEM file with the certificate's key, which others may neither read nor change."
    )
    ca: str = setting(
        "", "PEM file with the authority that a jq-worker trusts; none = those of the system."
    )
    client_ca: str = setting(
        "",
        "PEM file with the authority of client certificates. Set, gRPC takes no connection without"
        " one (mTLS), and HTTP takes one in place of a key or token.",
    )
    client_roles: SomeNames = setting(
        [],
        "Roles by the name in a client certificate, as NAME:ROLE+ROLE; `*` as the name stands for"
        " every other certificate. One that is not named has no role.",
    )


class LimitsSection(Section):
    submit_rate: Seconds = setting(
        0.0, "Jobs that one caller may submit in a second; 0 = no limit.", "jobs/s", ge=0, le=1e9
    )
    submit_burst: Int = setting(
        100, "Jobs that it may submit at once after a pause.", "jobs", ge=1, le=10**9
    )
    calls: Int = setting(
        4_000,
        "Calls under way at a time, on gRPC and on HTTP each; HTTP takes fewer of all kinds, as"
        " `http.max_connections` says.",
        "calls",
        ge=1,
        le=10**9,
    )
    calls_per_caller: Int = setting(2_000, "The same of one caller.", "calls", ge=1, le=10**9)
    waits: Int = setting(40_000, "Calls at a time that wait for a job.", "calls", ge=1, le=10**9)
    waits_per_caller: Int = setting(20_000, "The same of one caller.", "calls", ge=1, le=10**9)
    streams: Int = setting(
        8_000,
        "Streams at a time: each worker has one, and each watch of a job is one.",
        "streams",
        ge=1,
        le=10**9,
    )
    streams_per_caller: Int = setting(4_000, "The same of one caller.", "streams", ge=1, le=10**9)
    submit_streams: Int = setting(
        128,
        "Streams at a time that clients submit on over gRPC; an SDK that gets none submits by plain"
        " calls.",
        "streams",
        ge=1,
        le=10**9,
    )
    submit_streams_per_caller: Int = setting(
        32, "The same of one caller.", "streams", ge=1, le=10**9
    )
    workers_per_caller: Int = setting(
        10_000,
        "Workers that one caller may have registered at a time, where callers are known; 0 = no"
        " limit.",
        "workers",
        ge=0,
        le=10**6,
    )


def hashed_only(path: str) -> bool:
    """Whether the file holds no secret under this name: it takes hashes only."""
    return path == _API_KEYS


def plain_keys_in_file(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """Keys that the file gives as they are; it is where everybody looks."""
    joined = _joined(values.get(_API_KEYS, ""))
    if not isinstance(joined, str):
        return []  # the schema says what is wrong
    entries = [entry.strip() for entry in joined.split(",") if entry.strip()]
    return [
        f"{sources[_API_KEYS]}: {_API_KEYS}: entry {number} must end with {_HASHED} and the key's"
        " hash; keys themselves are taken from JQ_AUTH_API_KEYS or auth.api_keys_file"
        for number, entry in enumerate(entries, 1)
        if not entry.split(":", 2)[-1].strip().startswith(_HASHED)
    ]
