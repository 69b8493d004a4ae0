"""Find missing optional libraries, and say which extra of the package installs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from jobqueue.core.errors import InvalidArgument

PACKAGES = {
    "postgres": "asyncpg",
    "redis": "redis",
    "kafka": "confluent_kafka",
    "jwt": "cryptography",
    "bench": "hdrh",
}


def missing(extras: Iterable[str]) -> list[str]:
    """Return the extras whose library is not installed."""
    return [extra for extra in extras if not _is_installed(PACKAGES[extra])]


def _is_installed(package: str) -> bool:
    spec = find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name has no origin


def how_to_install(extras: Iterable[str]) -> str:
    """Return the command that installs the given extras."""
    return f"pip install 'jobqueue[{','.join(extras)}]'"


@contextmanager
def needed_by(field: str, package: str) -> Iterator[None]:
    """Raise InvalidArgument if an import in the block fails because an extra is not installed.

    ``package`` is the extra's library, and ``field`` the setting that needs the library.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise  # a defect of jobqueue
        extra = next(extra for extra, needed in PACKAGES.items() if needed == package)
        how = how_to_install([extra])
        raise InvalidArgument(
            field, f"needs the package {package}, which is not installed: {how}"
        ) from None
