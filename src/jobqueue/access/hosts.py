"""Check whether a host is this machine, and whether a ``Host`` header names a server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

ANY = "*"
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?", re.ASCII)
_MAX_REMEMBERED = 256


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to the host."""
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


class HostNames:
    """Contains the server names that a ``Host`` header may have.

    A hostile web page can let its own domain name resolve to this machine (DNS rebinding). The
    browser then lets the page read this server's answers. But the ``Host`` header of the page's
    requests has the hostile name, so that the server can refuse them.
    """

    def __init__(self, bound: str, allowed: Iterable[str] = (), *, any_name: bool = False) -> None:
        """Accept the listening address ``bound`` and the names ``allowed``, or any name."""
        self._listed = frozenset(_plain(name) for name in allowed)
        self._any_name = any_name or ANY in self._listed
        bound_to = _address(bound)
        # The server listens on every address of the machine. A page cannot redirect an address.
        self._any_address = bound_to is not None and bound_to.is_unspecified
        self._names = self._listed | {_plain(bound)}
        self._served: set[bytes] = set()

    def __contains__(self, authority: bytes) -> bool:
        """Return True if a ``Host`` header, with or without a port, names this server."""
        if self._any_name or authority in self._served:
            return True
        host = host_of(authority)
        if host is None or not self._is_ours(host):
            return False
        if len(self._served) < _MAX_REMEMBERED:
            self._served.add(authority)
        return True

    def is_listed(self, host: str) -> bool:
        return host in self._listed

    def _is_ours(self, host: str) -> bool:
        if host in self._names or is_loopback(host):
            return True
        return self._any_address and _address(host) is not None

    def __str__(self) -> str:
        return ", ".join(sorted({"localhost", "127.0.0.1", *self._names}))


def host_of(authority: bytes) -> str | None:
    """Return the host of ``HOST`` or ``HOST:PORT``; None if the text has neither form."""
    found = _AUTHORITY.fullmatch(authority.decode("latin-1").strip().lower())
    return None if found is None else _plain(found[1])


def _plain(host: str) -> str:
    bare = host.strip().lower().removesuffix(".").strip("[]")
    address = _address(bare)
    return bare if address is None else str(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
