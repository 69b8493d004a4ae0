"""Where servers are bound to their port."""

from __future__ import annotations

import grpc.aio

from jobqueue.access.tls import ServerTls
from jobqueue.api.grpc.channel import server_credentials
from jobqueue.core.errors import Unavailable


def bind(server: grpc.aio.Server, host: str, port: int, tls: ServerTls | None) -> int:
    """The port bound (0 asks for any free one); Unavailable if it is taken."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(tls))
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {address}: {error}") from None
