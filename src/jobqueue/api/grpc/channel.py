"""Open gRPC channels, bind gRPC servers, and define the limits that both sides use."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from typing import Any, cast

import grpc
import grpc.aio

from jobqueue.access.policy import AUTHORIZATION
from jobqueue.access.tls import Credentials, ServerTls, Tls, read_client_files
from jobqueue.api import listening
from jobqueue.core.errors import Conflict, Unavailable
from jobqueue.core.forking import FORKS

log = logging.getLogger("jobqueue.grpc")

KIB, MIB = 1024, 1024 * 1024
# A server accepts messages of this size even if its payload limit is lower, because clients fill
# batches up to BATCH_BYTES.
MIN_RECEIVE_BYTES = 4 * MIB
# Bytes of a message that are not its payload.
MESSAGE_MARGIN = 256 * KIB
# A batch of specs, assignments or reports is closed when it reaches this size.
BATCH_BYTES = 1 * MIB
BATCH_ITEMS = 1000
# The largest answer that a client accepts: one job with payload and result. Pages are smaller.
CLIENT_RECEIVE_BYTES = 64 * MIB
# The server closes a socket that sends nothing after this time. Our clients stop after 5 s.
HANDSHAKE_MS = 10_000
# The most calls of one method that wait until the server's event loop starts them.
_PENDING_CALLS = 8_000
# The most calls that our clients have under way on one connection. Then they open another.
CALLS_PER_CONNECTION = 500
# The most calls that a server allows on one connection. The limit also bounds the connection's
# pending calls, which wait in one line with all others of the same method. gRPC counts a call until
# its memory is free, even if its caller has ended it, and refuses more
# (grpc.http.overload_protection). Otherwise a caller that ends its calls at once would fill the
# line for all callers. The server counts an ended call a moment longer than its client, so the
# limit is twice what our clients use.
_MOST_CALLS = 2 * CALLS_PER_CONNECTION

# Metadata that a server sends when it accepts a stream, before any message.
STREAM_OPEN = ("jq-stream", "open")

_Options = Sequence[tuple[str, int | str]]
Metadata = tuple[tuple[str, str], ...]


def client_options() -> _Options:
    return (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", CLIENT_RECEIVE_BYTES),
        # The client detects a peer that vanished silently within 30 s, even on an idle channel.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # The time limit of one attempt to connect. After a refusal the backoff applies instead.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 500),
    )


def server_options(max_message_bytes: int) -> _Options:
    """Return the gRPC options of a server that accepts requests of up to ``max_message_bytes``.

    The limit is never below ``MIN_RECEIVE_BYTES``.
    """
    return (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max(max_message_bytes, MIN_RECEIVE_BYTES)),
        # The server refuses compressed requests with UNIMPLEMENTED: a few bytes must not become
        # millions. Each bit is an algorithm; the first bit stands for no compression.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # The server accepts at most 64 KiB of a message that it has not read; the rest waits at
        # the sender. With the probe, gRPC would accept more on a fast connection's streams.
        ("grpc.http2.bdp_probe", 0),
        # gRPC's own limits would cancel pending calls at random above 1,000, and all calls above
        # 3,000. That many waits for results may come at once, each with at most 64 KiB.
        ("grpc.max_concurrent_streams", _MOST_CALLS),
        ("grpc.http.overload_protection", 1),
        ("grpc.server.max_pending_requests", _PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS),
        ("grpc.so_reuseport", 0),  # a port in use is an error; programs do not share it silently
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    )


class Dialer:
    """Opens channels to one server, and holds the metadata to send with every call on a channel."""

    def __init__(self, target: str, credentials: Credentials | None = None) -> None:
        self.target = target
        credentials = credentials or Credentials()
        credentials.check()
        self._channel_credentials = _channel_credentials(credentials.tls)
        # Sent with each call, because gRPC's own call credentials work with TLS only.
        key = credentials.api_key
        self.metadata: Metadata = () if key is None else ((AUTHORIZATION, f"Bearer {key}"),)

    def open(self, *, alone: bool = False) -> grpc.aio.Channel:
        """Open a channel for the running event loop.

        With ``alone`` the channel has its own connection. The other channels of a process share a
        connection.
        """
        options = [*client_options(), ("grpc.use_local_subchannel_pool", int(alone))]
        return cast(grpc.aio.Channel, self._open(grpc.aio, options))

    def open_blocking(self) -> grpc.Channel:
        """Open a channel for threads.

        Heartbeats use it, so that a blocked loop cannot stop them.
        """
        return cast(grpc.Channel, self._open(grpc, client_options()))

    def _open(self, library: Any, options: _Options) -> Any:
        _IN_USE.check()
        if self._channel_credentials is None:
            channel = library.insecure_channel(self.target, options=options)
        else:
            channel = library.secure_channel(
                self.target, self._channel_credentials, options=options
            )
        _IN_USE.add(channel)
        return channel


_REMEDY = (
    "close the app or client before the fork (`await app.close()`; app.sync() closes by itself when"
    " no call and no worker is under way), or start the process with the 'spawn' method of"
    " multiprocessing"
)


class _InUse:
    """Refuses new channels in a process that was forked while gRPC channels were open.

    Such a process lacks gRPC's threads, so every call would wait until its deadline. gRPC may even
    crash the process; only GRPC_ENABLE_FORK_SUPPORT=0 prevents the crash. The user must set that
    variable, because it must be set before the import of gRPC and changes gRPC for all its users
    in the process.
    """

    def __init__(self) -> None:
        self._channels: weakref.WeakSet[grpc.aio.Channel | grpc.Channel] = weakref.WeakSet()
        self._orphaned = False
        self._warned = False

    def add(self, channel: grpc.aio.Channel | grpc.Channel) -> None:
        self._channels.add(channel)

    def check(self) -> None:
        if self._orphaned:
            raise Conflict(
                "this process was forked while gRPC channels were open in its parent, and gRPC"
                f" cannot be used in such a process: {_REMEDY}"
            )

    def before_fork(self) -> bool:
        if self._channels:
            gc.collect()  # closes channels that nothing refers to any more
        if self._channels and not self._warned:
            self._warned = True
            log.warning(
                "the process forks while gRPC channels are open; the child cannot use gRPC, which"
                " may even crash it; %s",
                _REMEDY,
            )
        return False

    def after_fork(self) -> None:
        self._orphaned = self._orphaned or len(self._channels) > 0


_IN_USE = _InUse()
FORKS.join(_IN_USE, last=True)


def _channel_credentials(tls: Tls | None) -> grpc.ChannelCredentials | None:
    if tls is None:
        return None
    ca, key, cert = read_client_files(tls)
    return grpc.ssl_channel_credentials(
        root_certificates=ca, private_key=key, certificate_chain=cert
    )


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return a server's TLS credentials.

    With ``tls.client_ca``, every client needs a certificate that this authority has signed.
    """
    tls.check()
    cert, key, ca = tls.read()
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=ca, require_client_auth=ca is not None
    )


async def bind(server: grpc.aio.Server, endpoint: listening.Endpoint, tls: ServerTls | None) -> int:
    """Bind a gRPC server and return its port; port 0 chooses any free port.

    Raise Unavailable if the port is in use. This function first tries to bind the port without
    gRPC, because gRPC's own error gives no reason, and gRPC writes to stderr.
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
