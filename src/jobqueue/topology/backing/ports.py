"""Free ports of 127.0.0.1."""

from __future__ import annotations

import random
import socket

# Below the range from which systems take the near ends of outgoing connections (from 32768 on
# Linux): so nobody's connection sits on the port while its server is being restarted.
_RANGE = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server could listen there now. Connections that linger do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    for port in random.sample(_RANGE, len(_RANGE)):
        if is_free(port):
            return port
    raise OSError(f"no port of 127.0.0.1 between {_RANGE.start} and {_RANGE.stop} is free")
