"""Parse and check the URLs of stores and servers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from jobqueue.core.address import MAX_PORT, Address, WrongPort
from jobqueue.core.errors import InvalidArgument
from jobqueue.redaction import redact_value

STORES = (
    "memory://, sqlite:///FILE (relative), sqlite:////PATH/FILE (absolute),"
    " postgresql://USER@HOST:PORT/DATABASE, redis://HOST:PORT/NUMBER, rediss://HOST:PORT/NUMBER"
    " (TLS)"
)
ALLOWED = f"{STORES}, grpc://HOST:PORT[,HOST:PORT…], grpcs://HOST:PORT[,…] (TLS)"
REDIS = "redis://HOST:PORT/NUMBER, rediss://HOST:PORT/NUMBER (TLS)"
_POSTGRES = ("postgresql", "postgres")
_REDIS = ("redis", "rediss")
SHARED = ("postgresql", "redis")  # schemes of stores that several servers may use together
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
_PREFIX_RULE = "1 to 50 letters, digits, '.', '_' or '-', the first a letter or digit"
# A host or [IPv6 address], and optionally a port. A host of PostgreSQL may be empty: it means the
# local server.
_PLACE = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]*)(?::([0-9]+))?")


@dataclass(frozen=True, slots=True)
class BackendUrl:
    """Holds the parts of a backend's URL: the scheme, and the named file or gRPC servers."""

    scheme: str
    path: Path | None = None
    servers: tuple[Address, ...] = ()
    tls: bool = False

    @property
    def target(self) -> str:
        """Return the addresses of the gRPC servers, separated by commas."""
        return ",".join(map(str, self.servers))


def is_redis(url: str) -> bool:
    """Return True if the scheme of a URL is that of Redis."""
    return url.partition("://")[0].lower() in _REDIS


def parse_url(url: str, field: str = "url", allowed: str = ALLOWED) -> BackendUrl:
    """Parse the URL of a store or server.

    Raises InvalidArgument if the URL has no allowed form. The error shows no password.
    """
    scheme, sep, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "memory" and sep:
        if rest.strip("/"):
            raise InvalidArgument(
                field, f"{redact_value(url)!r}: memory:// must not have a path; use memory:// alone"
            )
        return BackendUrl("memory")
    if scheme == "sqlite" and sep:
        return BackendUrl("sqlite", path=_sqlite_path(rest, url, field))
    if scheme in ("grpc", "grpcs") and sep:
        servers = tuple(_grpc_server(one, url, field) for one in rest.rstrip("/").split(","))
        return BackendUrl("grpc", servers=servers, tls=scheme == "grpcs")
    if scheme in _POSTGRES and sep:
        _check_places(_authority(rest), url, field)
        return BackendUrl("postgresql")
    if scheme in _REDIS and sep:
        check_redis_url(split_prefix(url, field)[0], field)
        return BackendUrl("redis")
    hint = _hint(scheme if sep else "", url, allowed)
    raise InvalidArgument(
        field, f"{redact_value(url)!r} is not a known form; allowed: {allowed}{hint}"
    )


def _hint(scheme: str, url: str, allowed: str) -> str:
    """Return a guess at the intended URL, to append to an error, or an empty text."""
    if scheme.startswith("postgres") and "postgresql" in allowed:
        return "; did you mean postgresql://?"
    if scheme in ("http", "https") and "grpc" in allowed:
        return "; clients use gRPC: name the server's gRPC port, like grpc://127.0.0.1:50051"
    if scheme:
        return ""
    if "grpc" in allowed and re.fullmatch(r"[\w.-]+:[0-9]+", url):
        return f"; did you mean grpc://{url}?"
    if "sqlite" in allowed and url.endswith((".db", ".sqlite", ".sqlite3")):
        return f"; did you mean sqlite:///{url}?"
    return ""


def _sqlite_path(rest: str, url: str, field: str) -> Path:
    host, slash, name = rest.partition("/")
    if host or not slash:
        raise InvalidArgument(
            field,
            f"{redact_value(url)!r}: sqlite needs three slashes for a relative file"
            " (sqlite:///jobs.db) and four slashes for an absolute file"
            " (sqlite:////var/lib/jobs.db)",
        )
    if not name or name.endswith("/"):
        raise InvalidArgument(field, f"{redact_value(url)!r} names no file; use sqlite:///jobs.db")
    if name == ":memory:":
        raise InvalidArgument(field, "sqlite in memory is not supported; use memory://")
    if "?" in name:
        raise InvalidArgument(
            field, f"{redact_value(url)!r}: a sqlite URL must not have options after '?'"
        )
    return Path(unquote(name))


def _grpc_server(rest: str, url: str, field: str) -> Address:
    shown = repr(redact_value(url))
    if "@" in rest or "/" in rest or "?" in rest:
        raise InvalidArgument(field, f"{shown}: a grpc URL must have only a host and a port")
    if rest.count(":") > 1 and not rest.startswith("["):  # an IPv6 address without brackets
        rest = "[{}]:{}".format(*rest.rsplit(":", 1))
    try:
        return Address.parse(rest)
    except WrongPort as error:
        raise InvalidArgument(field, f"{shown}: {error}") from None
    except ValueError:
        raise InvalidArgument(
            field, f"{shown} needs a host and a port, like grpc://127.0.0.1:50051"
        ) from None


def _authority(rest: str) -> str:
    return re.split(r"[/?#]", rest, maxsplit=1)[0]


def _has_bare_characters(url: str) -> bool:
    """Return True if a URL's user or password seems to have unescaped special characters.

    A parser would read a part of such a password as a host or a port, and show it in errors.
    """
    rest = url.partition("://")[2]
    authority = _authority(rest)
    # For PostgreSQL's client, the password ends at the first @, and a host follows.
    if authority.count("@") > 1 and url.startswith("postgres"):
        return True
    path, _, options = rest[len(authority) :].partition("?")
    return (
        "#" in rest
        or "@" in path
        or any("@" in option and "=" not in option for option in options.split("&"))
        or not {"[", "]"}.isdisjoint(authority.rpartition("@")[0])
    )


def _check_places(authority: str, url: str, field: str) -> list[str]:
    """Return the hosts of a URL without their ports.

    Raises InvalidArgument if a host or port is not valid.
    """
    hosts = []
    bare = _has_bare_characters(url)
    for place in authority.rpartition("@")[2].split(","):
        found = None if bare else _PLACE.fullmatch(place)
        if found is None:
            raise InvalidArgument(
                field,
                f"{redact_value(url)!r}: expected HOST or HOST:PORT after '//' or '@'; special"
                " characters of a name or password are written as %2F (/), %40 (@), %3A (:),"
                " %23 (#) and so on",
            )
        if found[2] is not None and not 0 < int(found[2]) <= MAX_PORT:
            raise InvalidArgument(field, f"{redact_value(url)!r}: the port must be 1 to {MAX_PORT}")
        hosts.append(found[1])
    return hosts


def check_redis_url(url: str, field: str = "redis.url") -> None:
    """Raise InvalidArgument if a URL is not valid for Redis; the error shows no password."""
    shown = repr(redact_value(url))
    scheme, sep, rest = url.partition("://")
    if scheme.lower() not in _REDIS or not sep:
        raise InvalidArgument(field, f"{shown} is not a known form; allowed: {REDIS}")
    place, mark, options = rest.partition("?")
    authority, _, number = place.partition("/")
    if "," in authority or not all(_check_places(authority, url, field)):
        raise InvalidArgument(field, f"{shown} needs one host, like redis://127.0.0.1:6379/0")
    if number and not (number.isascii() and number.isdigit()):
        raise InvalidArgument(field, f"{shown}: the path must be the number of a database, like /0")
    if mark and (
        scheme.lower() == "redis"
        or not all(option.startswith("ssl_") for option in options.split("&"))
    ):
        raise InvalidArgument(
            field,
            f"{shown}: options after '?' must begin with ssl_, like ssl_ca_certs, and need rediss://",
        )


def split_prefix(url: str, field: str) -> tuple[str, str | None]:
    """Return a store's URL without its option ``prefix=NAME``, and the option's value or None.

    The names of all keys of the store begin with the prefix.
    """
    address, mark, options = url.partition("?")
    left, prefix = [], None
    for option in options.split("&") if mark else ():
        name, _, value = option.partition("=")
        if name != "prefix":
            left.append(option)
        elif _PREFIX.fullmatch(value):
            prefix = value
        else:
            raise InvalidArgument(field, f"{redact_value(url)!r}: prefix must be {_PREFIX_RULE}")
    return "?".join([address, "&".join(left)] if left else [address]), prefix


def with_password(url: str, password: str) -> str:
    """Return a PostgreSQL or Redis URL with the password added; return other URLs unchanged.

    Use the result only to connect: logs and errors must show the URL without the password.
    """
    scheme, sep, rest = url.partition("://")
    if not password or not sep or scheme.lower() not in (*_POSTGRES, *_REDIS):
        return url
    authority = _authority(rest)
    login, _, places = authority.rpartition("@")
    user = login.partition(":")[0]
    quoted = quote(password, safe="", errors="surrogateescape")  # keeps bytes that are not UTF-8
    return f"{scheme}://{user}:{quoted}@{places}{rest[len(authority) :]}"
