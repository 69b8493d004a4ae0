"""Channels and servers of gRPC: how they are opened, and the limits that both sides share."""

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
# Room in a message beside the payload.
MESSAGE_MARGIN = 256 * KIB
# A batch of specs, assignments or reports is closed when it reaches this size.
BATCH_BYTES = 1 * MIB
BATCH_ITEMS = 1000
# The largest answer that a client accepts: one job with payload and result. Pages are smaller.
CLIENT_RECEIVE_BYTES = 64 * MIB
_PENDING_CALLS = 8_000  # calls of one method that wait until the server's loop takes them
# The most calls that our clients have under way on one connection. For more they open another one.
CALLS_PER_CONNECTION = 500
# The most calls that a server lets one connection have. It also bounds the pending calls of one
# connection, which wait in one line with those of all others for the same method. gRPC counts a
# call until its memory is free, even if its caller has ended it, and refuses more
# (grpc.http.overload_protection). Otherwise a caller that ends its calls at once would fill the
# line for all. An ended call counts a moment longer than its client believes, so the limit is
# twice what our clients use.
_MOST_CALLS = 2 * CALLS_PER_CONNECTION

# Metadata that a server sends when it accepts a stream, before any message.
STREAM_OPEN = ("jq-stream", "open")

_Options = Sequence[tuple[str, int | str]]
Metadata = tuple[tuple[str, str], ...]


def client_options() -> _Options:
    return (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", CLIENT_RECEIVE_BYTES),
        # A peer that vanished silently is noticed within 30 s, even if the channel is idle.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # The time limit of one attempt to connect. After a refusal the backoff counts.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 500),
    )


def server_options(max_message_bytes: int) -> _Options:
    """Return the options of a server that accepts messages of ``max_message_bytes``."""
    return (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max(max_message_bytes, MIN_RECEIVE_BYTES)),
        # Compressed requests are UNIMPLEMENTED: a few bytes must not become millions. Each bit is
        # an algorithm; the first stands for no compression.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # At most 64 KiB of an unread message are accepted; the rest waits at its sender. With the
        # probe, gRPC would accept more on every stream of a fast connection.
        ("grpc.http2.bdp_probe", 0),
        # gRPC's own limits would cancel pending calls at random from 1,000 on, and all from 3,000
        # on. That many waits for results may come at once, each with those 64 KiB at most.
        ("grpc.max_concurrent_streams", _MOST_CALLS),
        ("grpc.http.overload_protection", 1),
        ("grpc.server.max_pending_requests", _PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS),
        ("grpc.so_reuseport", 0),  # a taken port is an error, not a silent share
        # A silent socket is closed after this. Our own clients give up after 5 s.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    )


class Dialer:
    """Opens channels to one server, and holds the metadata that every call on them carries."""

    def __init__(self, target: str, credentials: Credentials | None = None) -> None:
        self.target = target
        credentials = credentials or Credentials()
        credentials.check()
        self._channel_credentials = _channel_credentials(credentials.tls)
        # Sent with each call, because gRPC's own call credentials work with TLS only.
        key = credentials.api_key
        self.metadata: Metadata = () if key is None else ((AUTHORIZATION, f"Bearer {key}"),)

    def open(self, *, alone: bool = False) -> grpc.aio.Channel:
        """Open a channel for the running loop.

        ``alone``: on a connection of its own. Other channels of a process share one.
        """
        options = [*client_options(), ("grpc.use_local_subchannel_pool", int(alone))]
        return cast(grpc.aio.Channel, self._open(grpc.aio, options))

    def open_blocking(self) -> grpc.Channel:
        """Open a channel for threads. Heartbeats use it: they must survive a blocked loop."""
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
    """Notices that gRPC was in use when this process was forked, and refuses channels then.

    In such a process gRPC's threads are missing, and every call would wait until its deadline. gRPC
    may even crash it. Only GRPC_ENABLE_FORK_SUPPORT=0 prevents that. It is the user's choice,
    because it must be set before gRPC is imported, and holds for all users of gRPC in the process.
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
    """Return a server's credentials; with a client CA, clients need a certificate signed by it."""
    tls.check()
    cert, key, ca = tls.read()
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=ca, require_client_auth=ca is not None
    )


async def bind(server: grpc.aio.Server, endpoint: listening.Endpoint, tls: ServerTls | None) -> int:
    """Bind a server and return its port (0 asks for any free one); Unavailable if it is taken.

    The port is tried first, because gRPC's own error gives no reason, and gRPC writes to stderr.
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
