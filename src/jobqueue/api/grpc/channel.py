"""Where channels are opened, and what both sides agree on."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence

import grpc
import grpc.aio

from jobqueue.access.policy import AUTHORIZATION
from jobqueue.access.tls import Credentials, ServerTls, Tls, read_client_files
from jobqueue.core.errors import Conflict
from jobqueue.core.forking import FORKS

log = logging.getLogger("jobqueue.grpc")

KIB, MIB = 1024, 1024 * 1024
# A server takes at least this much in one message, whatever its payload limit: clients may fill
# batches up to BATCH_BYTES.
MIN_RECEIVE_BYTES = 4 * MIB
# Room in a message beside the payload.
MESSAGE_MARGIN = 256 * KIB
# A batch of specs, assignments or reports is closed when it reaches this size.
BATCH_BYTES = 1 * MIB
BATCH_ITEMS = 1000
# The largest answer a client takes: one job with payload and result. Pages are smaller.
CLIENT_RECEIVE_BYTES = 64 * MIB
_UNTAKEN_CALLS = 8_000  # that wait until the server's loop takes them

# Sent at the beginning of a stream that was let in, before any message.
STREAM_OPEN = ("jq-stream", "open")

_Options = Sequence[tuple[str, int | str]]
Metadata = tuple[tuple[str, str], ...]


def client_options() -> _Options:
    """Options of every channel to a server."""
    return (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", CLIENT_RECEIVE_BYTES),
        # A peer that vanished without a word is noticed within 30 s, also while idle.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # What one attempt to connect may take; after a refusal the next comes by the backoff.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 500),
    )


def server_options(max_message_bytes: int) -> _Options:
    """Options of a server; ``max_message_bytes`` bounds what it takes in one message."""
    return (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max(max_message_bytes, MIN_RECEIVE_BYTES)),
        # A few bytes must not become millions: compressed requests are UNIMPLEMENTED. The bits are
        # the algorithms, the first one is none.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # A message that nobody reads yet waits at its sender, but for 64 KiB: gRPC would let in
        # more on every stream of a fast connection. One that is being read comes by the MiB.
        ("grpc.http2.bdp_probe", 0),
        # Each with those 64 KiB at most. gRPC would cancel some from 1,000 on, at random, and all
        # from 3,000 on: so many waits for results may come at once.
        ("grpc.server.max_pending_requests", _UNTAKEN_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _UNTAKEN_CALLS),
        ("grpc.so_reuseport", 0),  # a taken port is an error, not a silent share
        # A socket that says nothing is closed. A client of ours gives up after 5 s itself.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    )


class Dialer:
    """Opens channels to one server, and says what every call on them carries."""

    def __init__(self, target: str, credentials: Credentials | None = None) -> None:
        self.target = target
        credentials = credentials or Credentials()
        credentials.check()
        self._channel_credentials = _channel_credentials(credentials.tls)
        # Given with each call: grpc's own call credentials refuse to go without TLS.
        key = credentials.api_key
        self.metadata: Metadata = () if key is None else ((AUTHORIZATION, f"Bearer {key}"),)

    def open(self) -> grpc.aio.Channel:
        """A channel for the running loop."""
        _IN_USE.check()
        if self._channel_credentials is None:
            channel = grpc.aio.insecure_channel(self.target, options=client_options())
        else:
            channel = grpc.aio.secure_channel(
                self.target, self._channel_credentials, options=client_options()
            )
        _IN_USE.add(channel)
        return channel

    def open_blocking(self) -> grpc.Channel:
        """A channel for threads; heartbeats use it, since they must survive a blocked loop."""
        _IN_USE.check()
        if self._channel_credentials is None:
            channel = grpc.insecure_channel(self.target, options=client_options())
        else:
            channel = grpc.secure_channel(
                self.target, self._channel_credentials, options=client_options()
            )
        _IN_USE.add(channel)
        return channel


_REMEDY = (
    "close the app or client before the fork (`await app.close()`; app.sync() closes by itself when"
    " no call and no worker is under way), or start the process with the 'spawn' method of"
    " multiprocessing"
)


class _InUse:
    """Whether gRPC was in use when this process was forked.

    Its threads are missing then, and every call would wait until its time is up. That gRPC itself
    may crash such a child is prevented by GRPC_ENABLE_FORK_SUPPORT=0 alone, which has to be set
    before gRPC is imported and holds for all its users in the process: that is not ours to choose.
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
            gc.collect()  # those that only wait for the garbage collector are closed by it
        if self._channels and not self._warned:
            self._warned = True
            log.warning(
                "the process forks while gRPC channels are open: the child cannot use gRPC, which"
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
    """What a server shows; with a client CA, it takes only clients that show one of its own."""
    tls.check()
    cert, key, ca = tls.read()
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=ca, require_client_auth=ca is not None
    )
