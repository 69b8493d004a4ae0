"""Describe callers: their names, roles and addresses, and the caller of the current task."""

from __future__ import annotations

import enum
import ipaddress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache

from jobqueue.core import waiting


class Role(enum.StrEnum):
    """Names a set of rights. A caller may have several roles."""

    CLIENT = "client"  # submits jobs, and reads, waits for and cancels them
    WORKER = "worker"  # takes jobs and reports on them
    OPERATOR = "operator"  # manages queues, workers and dead letters; reads jobs
    VIEWER = "viewer"  # reads jobs, queues, workers and the state of the system
    MONITOR = "monitor"  # reads metrics, and nothing else


EVERY_ROLE = frozenset(Role)
_NAMES = ", ".join(Role)
_IPV6_NETWORK = 64  # bits


@dataclass(frozen=True, slots=True)
class Caller:
    """Holds the caller's name, roles and address. The server sets them when a call begins."""

    name: str  # empty on a server without authentication
    roles: frozenset[Role]
    address: str = field(default="", compare=False)

    @property
    def account(self) -> str:
        """Return the key of the caller's limits: its name, or its network if it has no name."""
        return f"name {self.name}" if self.name else f"address {network(self.address)}"


def network(address: str) -> str:
    """Return an IPv4 address itself, and the /64 network of an IPv6 address.

    One host may use every address of its IPv6 network, so limits count the network.
    """
    return _ipv6_network(address) if ":" in address else address


@lru_cache(4096)
def _ipv6_network(address: str) -> str:
    try:
        given = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:  # a socket's path
        return address
    if given.ipv4_mapped is not None:
        return str(given.ipv4_mapped)
    return str(ipaddress.ip_network((given, _IPV6_NETWORK), strict=False))


def parse_roles(text: str) -> frozenset[Role]:
    """Parse ``role+role`` to roles.

    Raise ValueError with the allowed roles if a role is unknown.
    """
    try:
        return frozenset(Role(part.strip()) for part in text.split("+"))
    except ValueError:
        raise ValueError(f"unknown role in {text[:60]!r}; allowed: {_NAMES}, joined by +") from None


# The gRPC or HTTP API sets it for each call. The code that the call runs reads it.
_current: ContextVar[Caller | None] = ContextVar("jobqueue_caller", default=None)
_ANONYMOUS = Caller("", EVERY_ROLE)


def current_caller() -> Caller:
    return _current.get() or _ANONYMOUS


def enter_call(caller: Caller) -> None:
    """Set the caller of the current task and of the tasks that it starts."""
    _current.set(caller)
    waiting.account.set(caller.account)
