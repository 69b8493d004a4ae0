"""From a URL to a backend: the one place that knows which schemes exist."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from jobqueue.access.hosts import is_loopback
from jobqueue.access.tls import Credentials, Tls
from jobqueue.core.errors import InvalidArgument, NotFound, Unavailable
from jobqueue.core.locks import Locks
from jobqueue.core.observer import Deaf, Observer
from jobqueue.core.store import Rules, Store
from jobqueue.redaction import redact, redact_value
from jobqueue.topology.extras import not_installed

if TYPE_CHECKING:
    from jobqueue.core.api import Backend
    from jobqueue.engine.settings import EngineSettings

log = logging.getLogger("jobqueue.client")

STORES = (
    "memory://, sqlite:///FILE (relative), sqlite:////PATH/FILE (absolute),"
    " postgresql://USER@HOST:PORT/DATABASE, redis://HOST:PORT/NUMBER, rediss://HOST:PORT/NUMBER"
    " (TLS)"
)
ALLOWED = f"{STORES}, grpc://HOST:PORT[,HOST:PORT…], grpcs://HOST:PORT[,…] (TLS)"
REDIS = "redis://HOST:PORT/NUMBER, rediss://HOST:PORT/NUMBER (TLS)"
POOL_SIZE = 8
REDIS_TIMEOUT = 0.05
_POSTGRES = ("postgresql", "postgres")
_REDIS = ("redis", "rediss")
_MAX_PORT = 65535
SHARED = ("postgresql", "redis")  # stores that other servers may have open, too
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
_PREFIX_RULE = "1 to 50 letters, digits, '.', '_' or '-', the first a letter or digit"
# A host or [IPv6 address], and perhaps a port; PostgreSQL's may be empty: the local server.
_PLACE = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]*)(?::([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL: the scheme, and the file or the servers that it names."""

    scheme: str
    path: Path | None = None
    servers: tuple[tuple[str, int], ...] = ()
    tls: bool = False

    @property
    def target(self) -> str:
        """``host:port`` as gRPC wants it; several with commas between."""
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )


def is_redis(url: str) -> bool:
    """Whether a URL names a Redis."""
    return url.partition("://")[0].lower() in _REDIS


def parse_url(url: str, field: str = "url", allowed: str = ALLOWED) -> Address:
    """Read a backend URL; the error lists the allowed forms and shows no password."""
    scheme, sep, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme == "memory" and sep:
        if rest.strip("/"):
            raise InvalidArgument(field, f"{redact_value(url)!r}: memory:// takes no path")
        return Address("memory")
    if scheme == "sqlite" and sep:
        return Address("sqlite", path=_sqlite_path(rest, url, field))
    if scheme in ("grpc", "grpcs") and sep:
        servers = tuple(_host_port(one, url, field) for one in rest.rstrip("/").split(","))
        return Address("grpc", servers=servers, tls=scheme == "grpcs")
    if scheme in _POSTGRES and sep:
        _check_places(_authority(rest), url, field)
        return Address("postgresql")
    if scheme in _REDIS and sep:
        check_redis_url(_split_prefix(url, field)[0], field)
        return Address("redis")
    hint = _hint(scheme if sep else "", url, allowed)
    raise InvalidArgument(
        field, f"{redact_value(url)!r} is not a known form; allowed: {allowed}{hint}"
    )


def _hint(scheme: str, url: str, allowed: str) -> str:
    """What was probably meant."""
    if scheme.startswith("postgres") and "postgresql" in allowed:
        return "; did you mean postgresql://?"
    if scheme in ("http", "https") and "grpc" in allowed:
        return "; programs speak gRPC: name the server's other port, like grpc://127.0.0.1:50051"
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
            f"{redact_value(url)!r}: sqlite takes three slashes for a relative file (sqlite:///jobs.db)"
            " and four for an absolute one (sqlite:////var/lib/jobs.db)",
        )
    if not name or name.endswith("/"):
        raise InvalidArgument(field, f"{redact_value(url)!r} names no file; use sqlite:///jobs.db")
    if name == ":memory:":
        raise InvalidArgument(field, "sqlite in memory is not supported; use memory://")
    if "?" in name:
        raise InvalidArgument(field, f"{redact_value(url)!r}: sqlite takes no options after '?'")
    return Path(unquote(name))


def _host_port(rest: str, url: str, field: str) -> tuple[str, int]:
    shown = repr(redact_value(url))
    if "@" in rest or "/" in rest or "?" in rest:
        raise InvalidArgument(field, f"{shown}: grpc takes only a host and a port")
    host, sep, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not sep or not host or not port.isascii() or not port.isdigit():
        raise InvalidArgument(
            field, f"{shown} needs a host and a port, like grpc://127.0.0.1:50051"
        )
    if not 0 < int(port) <= _MAX_PORT:
        raise InvalidArgument(field, f"{shown}: the port must be 1 to {_MAX_PORT}")
    return host, int(port)


def _authority(rest: str) -> str:
    return re.split(r"[/?#]", rest, maxsplit=1)[0]


def _has_bare_characters(url: str) -> bool:
    """Whether a login seems to have special characters in it as they are.

    Whoever reads such a URL by the rules takes a part of the password for a host or a port, and
    shows it.
    """
    rest = url.partition("://")[2]
    authority = _authority(rest)
    # PostgreSQL's client ends a login at the first @, and takes what follows for a host.
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
    """The hosts of a URL, without their ports."""
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
        if found[2] is not None and not 0 < int(found[2]) <= _MAX_PORT:
            raise InvalidArgument(
                field, f"{redact_value(url)!r}: the port must be 1 to {_MAX_PORT}"
            )
        hosts.append(found[1])
    return hosts


def check_redis_url(url: str, field: str = "redis.url") -> None:
    """Refuse what names no Redis; the error shows no password."""
    shown = repr(redact_value(url))
    scheme, sep, rest = url.partition("://")
    if scheme.lower() not in _REDIS or not sep:
        raise InvalidArgument(field, f"{shown} is not a known form; allowed: {REDIS}")
    place, mark, options = rest.partition("?")
    authority, _, number = place.partition("/")
    if "," in authority or not all(_check_places(authority, url, field)):
        raise InvalidArgument(field, f"{shown} needs one host, like redis://127.0.0.1:6379/0")
    if number and not (number.isascii() and number.isdigit()):
        raise InvalidArgument(field, f"{shown}: after the host comes the number of a database")
    if mark and (
        scheme.lower() == "redis"
        or not all(option.startswith("ssl_") for option in options.split("&"))
    ):
        raise InvalidArgument(
            field, f"{shown}: the only options after '?' are those of rediss://, like ssl_ca_certs"
        )


def _split_prefix(url: str, field: str) -> tuple[str, str | None]:
    """A store's Redis, and what its keys begin with: ``prefix=NAME`` among the options."""
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
    """The URL of a PostgreSQL or Redis with a password in it; other URLs take none.

    For the connection only: what people see is the URL without it.
    """
    scheme, sep, rest = url.partition("://")
    if not password or not sep or scheme.lower() not in (*_POSTGRES, *_REDIS):
        return url
    authority = _authority(rest)
    login, _, places = authority.rpartition("@")
    user = login.partition(":")[0]
    quoted = quote(password, safe="", errors="surrogateescape")  # its bytes, if it is no text
    return f"{scheme}://{user}:{quoted}@{places}{rest[len(authority) :]}"


def create_locks(
    url: str,
    *,
    timeout: float = REDIS_TIMEOUT,
    observer: Observer | None = None,
    field: str = "redis.url",
) -> Locks | None:
    """The locks in the Redis that a URL names, not opened yet; None if it names none."""
    if not url:
        return None
    check_redis_url(url, field)
    try:
        from jobqueue.stores.redis.locks import RedisLocks
    except ModuleNotFoundError as error:
        raise not_installed(error, field, "redis") from None
    try:
        return RedisLocks(url, timeout=timeout, observer=observer)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(field, f"{redact_value(url)!r}: {redact(str(error))}") from None


def create_store(
    url: str,
    *,
    rules: Rules | None = None,
    observer: Observer | None = None,
    create: bool = True,
    field: str = "url",
    locks: Locks | None = None,
    pool_size: int = POOL_SIZE,
    partitions: int = 0,
) -> Store:
    """The store a URL names, not opened yet. ``create=False``: its file or tables must exist.

    ``locks`` and ``pool_size`` are for PostgreSQL: no other store has servers beside it that a
    lock elsewhere could help with. ``partitions`` are for Redis: so many there are to be allotted
    to workers that hear of their jobs by Kafka; 0: they do not.
    """
    address = parse_url(url, field, STORES)
    rules = rules or Rules()
    observer = observer or Deaf()
    if locks is not None and address.scheme != "postgresql":
        log.warning("redis.url is not used: only a store on PostgreSQL needs it")
    if address.path is not None:
        from jobqueue.stores.sqlite.store import SqliteStore

        _prepare_file(address.path, create=create)
        return SqliteStore(address.path, rules=rules, observer=observer)
    if address.scheme == "memory":
        from jobqueue.stores.memory import MemoryStore

        return MemoryStore(rules=rules, observer=observer)
    if address.scheme == "postgresql":
        try:
            from jobqueue.stores.postgres.store import PostgresStore
        except ModuleNotFoundError as error:
            raise not_installed(error, field, "asyncpg") from None
        return PostgresStore(
            url, rules=rules, observer=observer, locks=locks, pool_size=pool_size, create=create
        )
    if address.scheme == "redis":
        return _redis_store(url, rules, observer, create=create, field=field, partitions=partitions)
    raise InvalidArgument(
        field, f"{redact_value(url)!r} names a server, not a store; allowed: {STORES}"
    )


def _redis_store(
    url: str, rules: Rules, observer: Observer, *, create: bool, field: str, partitions: int
) -> Store:
    try:
        from jobqueue.stores.redis.store import PREFIX, RedisStore
    except ModuleNotFoundError as error:
        raise not_installed(error, field, "redis") from None
    url, name = _split_prefix(url, field)
    prefix = PREFIX if name is None else f"{{{name}}}:"
    try:
        return RedisStore(
            url,
            rules=rules,
            observer=observer,
            prefix=prefix,
            create=create,
            partitions=partitions,
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument(field, f"{redact_value(url)!r}: {redact(str(error))}") from None


def _prepare_file(path: Path, *, create: bool) -> None:
    if not create and not path.exists():
        raise NotFound(f"there is no file {str(path)!r} (in {Path.cwd()})")
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "a file has that name" if path.parent.exists() else error.strerror
            raise Unavailable(f"cannot create the folder {str(path.parent)!r}: {why}") from error


def orphaned(scheme: str) -> str:
    """Why a process that was forked while its parent had this open cannot go on; empty: it can."""
    if scheme == "memory":
        return (
            "the app's jobs are in the memory of the process that this one was forked from: use it"
            " only after the fork, or use sqlite:///FILE, which processes can share"
        )
    if scheme in ("sqlite", "grpc"):
        return (
            "this process was forked while its parent had the app open, and what was open does not"
            " survive a fork: call `await app.close()` before the fork (app.sync() closes by itself"
            " when no call and no worker is under way), or start the process with the 'spawn'"
            " method of multiprocessing"
        )
    return ""


def warn_of_readable_key(credentials: Credentials, address: Address) -> None:
    """A key that leaves this machine without TLS can be read on its way."""
    if credentials.api_key is None or credentials.tls is not None:
        return
    for host, _ in address.servers:
        if not is_loopback(host):
            log.warning("the API key goes to %s without TLS: it can be read", host)


def create_backend(
    url: str,
    *,
    settings: EngineSettings | None = None,
    rules: Rules | None = None,
    observer: Observer | None = None,
    create: bool = True,
    field: str = "url",
    call_timeout: float = 10.0,
    credentials: Credentials | None = None,
    locks: Locks | None = None,
    pool_size: int = POOL_SIZE,
    partitions: int = 0,
) -> Backend:
    """The backend a URL names, not started yet: an engine over a store, or a server's client.

    Settings and rules are the engine's; a server has its own, and only there a call can time out
    and credentials are shown.
    """
    address = parse_url(url, field)
    if address.scheme == "grpc":
        from jobqueue.api.grpc.remote import GrpcBackend

        shown = credentials or Credentials()
        if address.tls and shown.tls is None:
            shown = Credentials(shown.api_key, Tls())
        warn_of_readable_key(shown, address)
        return GrpcBackend(address.target, timeout=call_timeout, credentials=shown)
    from jobqueue.engine.engine import Engine
    from jobqueue.engine.settings import EngineSettings

    store = create_store(
        url,
        rules=rules,
        observer=observer,
        create=create,
        field=field,
        locks=locks,
        pool_size=pool_size,
        partitions=partitions,
    )
    return Engine(store, settings or EngineSettings(), observer=observer or Deaf())
