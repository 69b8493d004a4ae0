"""Where gRPC servers are bound to their port."""

from __future__ import annotations

import grpc.aio

from jobqueue.access.tls import ServerTls
from jobqueue.api import listening
from jobqueue.api.grpc.channel import server_credentials
from jobqueue.core.errors import Unavailable


async def bind(server: grpc.aio.Server, endpoint: listening.Endpoint, tls: ServerTls | None) -> int:
    """The port bound (0 asks for any free one); Unavailable if it is taken.

    gRPC's own error does not say why, and it writes lines of its own to stderr: so the port is
    tried before.
    """
    await listening.check(endpoint)
    try:
        if tls is None:
            return server.add_insecure_port(str(endpoint))
        return server.add_secure_port(str(endpoint), server_credentials(tls))
    except RuntimeError as error:
        raise Unavailable(
            f"{endpoint.port_setting}: cannot listen on {endpoint}: {error}"
        ) from None
