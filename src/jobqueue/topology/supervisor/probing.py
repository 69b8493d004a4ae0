"""Asks a process for its health."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass

from jobqueue.topology.layouts.layout import Probe

_TIMEOUT = 2.0
_MOST = 64 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found: well or not, and why not, or what people should know."""

    ok: bool
    detail: str = ""


async def ask(probe: Probe) -> Finding:
    """One question; never raises."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await _ask(probe)
    except TimeoutError:
        return Finding(False, f"no answer within {_TIMEOUT:g} s")
    except (OSError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
        return Finding(False, f"no answer: {_plain(error)}")


async def _ask(probe: Probe) -> Finding:
    context = _trusting() if probe.tls else None
    reader, writer = await asyncio.open_connection(probe.host, probe.port, ssl=context)
    try:
        if not probe.path:
            return Finding(True)
        writer.write(
            f"GET {probe.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read(_MOST)
        while more := await reader.read(_MOST):
            answer += more
            if len(answer) > _MOST:
                break
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    return Finding(True) if status == 200 else Finding(False, _why(body) or f"HTTP {status}")


def _why(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _plain(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _trusting() -> ssl.SSLContext:
    """Takes any certificate: this is our own process on our own machine, asked how it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
