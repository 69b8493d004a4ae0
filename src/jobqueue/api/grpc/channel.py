"""Where channels are opened, and what both sides agree on."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio

KIB, MIB = 1024, 1024 * 1024
# A server takes at least this much in one message, whatever its payload limit: clients may fill
# batches up to BATCH_BYTES.
MIN_RECEIVE_BYTES = 4 * MIB
# Room in a message beside the payload.
MESSAGE_MARGIN = 256 * KIB
# A batch of specs, assignments or reports is closed when it reaches this size.
BATCH_BYTES = 1 * MIB
BATCH_ITEMS = 1000
# A page of jobs is made shorter when it would exceed this.
PAGE_BYTES = 16 * MIB
# The largest answer a client takes: a page, or one job with payload and result.
CLIENT_RECEIVE_BYTES = 64 * MIB

_Options = Sequence[tuple[str, int | str]]


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
        ("grpc.max_reconnect_backoff_ms", 1_000),
    )


def server_options(max_message_bytes: int) -> _Options:
    """Options of a server; ``max_message_bytes`` bounds what it takes in one message."""
    return (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max(max_message_bytes, MIN_RECEIVE_BYTES)),
        ("grpc.so_reuseport", 0),  # a taken port is an error, not a silent share
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    )


def open_channel(target: str) -> grpc.aio.Channel:
    """A channel for the running loop."""
    return grpc.aio.insecure_channel(target, options=client_options())


def open_blocking_channel(target: str) -> grpc.Channel:
    """A channel for threads; heartbeats use it, since they must survive a blocked loop."""
    return grpc.insecure_channel(target, options=client_options())
