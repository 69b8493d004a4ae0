"""Create the store or backend that a URL names, for every scheme of URLs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jobqueue.access.hosts import is_loopback
from jobqueue.access.tls import Credentials, Tls
from jobqueue.connect.extras import needed_by
from jobqueue.connect.urls import STORES, BackendUrl, check_redis_url, parse_url, split_prefix
from jobqueue.core.errors import InvalidArgument, NotFound, Unavailable
from jobqueue.core.observer import Observer
from jobqueue.core.store import Locks, Rules, Store
from jobqueue.redaction import redact, redact_value

if TYPE_CHECKING:
    from jobqueue.core.api import Backend
    from jobqueue.engine.settings import EngineSettings

log = logging.getLogger("jobqueue.client")

POOL_SIZE = 8
REDIS_TIMEOUT = 0.05


def create_locks(
    url: str,
    *,
    timeout: float = REDIS_TIMEOUT,
    observer: Observer | None = None,
    field: str = "redis.url",
) -> Locks | None:
    """Create the locks in the Redis that a URL names, without connecting yet.

    Return None for an empty URL. ``field`` is the setting's name in errors.
    """
    if not url:
        return None
    check_redis_url(url, field)
    with _redis_client(url, field):
        from jobqueue.stores.redis.locks import RedisLocks

        return RedisLocks(url, timeout=timeout, observer=observer)


@contextmanager
def _redis_client(url: str, field: str) -> Iterator[None]:
    """Raise InvalidArgument if the block cannot import Redis's client, or the client the URL."""
    with needed_by(field, "redis"):
        try:
            yield
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
    max_payload_bytes: int | None = None,
) -> Store:
    """Create the store that a URL names, without opening it yet.

    With ``create=False``, opening the store fails if it does not exist. ``locks`` and ``pool_size``
    apply to PostgreSQL only. ``partitions`` applies to Redis only: it is the number of partitions
    of the Kafka topic through which workers learn of their jobs, or 0 without such a topic.
    ``max_payload_bytes`` applies to PostgreSQL only: it becomes the payload limit of the SQL
    functions for users' own transactions; None leaves their limit unchanged.
    ``field`` is the setting's name in errors.
    """
    address = parse_url(url, field, STORES)
    rules = rules or Rules()
    observer = observer or Observer()
    if locks is not None and address.scheme != "postgresql":
        log.warning(
            "redis.url is ignored: only stores on PostgreSQL use locks in Redis; the store is %s",
            redact_value(url),
        )
    if address.path is not None:
        from jobqueue.stores.sqlite.store import SqliteStore

        _prepare_file(address.path, create=create)
        return SqliteStore(address.path, rules=rules, observer=observer)
    if address.scheme == "memory":
        from jobqueue.stores.memory import MemoryStore

        return MemoryStore(rules=rules)
    if address.scheme == "postgresql":
        with needed_by(field, "asyncpg"):
            from jobqueue.stores.postgres.store import PostgresStore
        return PostgresStore(
            url,
            rules=rules,
            observer=observer,
            locks=locks,
            pool_size=pool_size,
            create=create,
            max_payload_bytes=max_payload_bytes,
        )
    if address.scheme == "redis":
        return _redis_store(url, rules, observer, create=create, field=field, partitions=partitions)
    raise InvalidArgument(
        field, f"{redact_value(url)!r} names a server, not a store; allowed: {STORES}"
    )


def _redis_store(
    url: str, rules: Rules, observer: Observer, *, create: bool, field: str, partitions: int
) -> Store:
    url, name = split_prefix(url, field)
    with _redis_client(url, field):
        from jobqueue.stores.redis.store import PREFIX, RedisStore

        return RedisStore(
            url,
            rules=rules,
            observer=observer,
            prefix=PREFIX if name is None else f"{{{name}}}:",
            create=create,
            partitions=partitions,
        )


def _prepare_file(path: Path, *, create: bool) -> None:
    if not create and not path.exists():
        raise NotFound(f"there is no file {str(path)!r} (in {Path.cwd()}); check the path")
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "a file has that name" if path.parent.exists() else error.strerror
            raise Unavailable(f"cannot create the folder {str(path.parent)!r}: {why}") from error


def orphaned(scheme: str) -> str:
    """Return the error text for a process that was forked while its parent had the backend open.

    The text is empty if such a process can open its own backend.
    """
    if scheme == "memory":
        return (
            "the app's jobs are in the memory of the process that this process was forked from: use"
            " the app only after the fork, or use sqlite:///FILE, which processes can share"
        )
    if scheme in ("sqlite", "grpc"):
        return (
            "this process was forked while its parent had the app open, and open connections do not"
            " survive a fork: call `await app.close()` before the fork (app.sync() closes by itself"
            " while no call and no worker runs), or start the process with the 'spawn' method of"
            " multiprocessing"
        )
    return ""


def warn_of_readable_key(credentials: Credentials, address: BackendUrl) -> None:
    """Log a warning if the API key is sent to another machine without TLS."""
    if credentials.api_key is None or credentials.tls is not None:
        return
    for host, _ in address.servers:
        if not is_loopback(host):
            log.warning(
                "the API key is sent to %s without TLS, so others on the network can read the key;"
                " use grpcs://",
                host,
            )


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
) -> Backend:
    """Create the backend that a URL names, but do not start it: an engine or a server's client.

    ``settings``, ``rules``, ``observer``, ``locks`` and ``pool_size`` apply to an engine in this
    process. ``call_timeout`` and ``credentials`` apply to the client of a server.
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
    )
    chosen = settings or EngineSettings(key_ttl=(rules or Rules()).key_ttl)
    return Engine(store, chosen, observer=observer or Observer())
