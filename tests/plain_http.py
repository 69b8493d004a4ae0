"""An HTTP client for servers on this machine that speak no TLS."""

from __future__ import annotations

import httpx

from tests import patience


def plain_http(base_url: str = "", timeout: float = patience.longest(20)) -> httpx.AsyncClient:
    """Without the authorities of the system, which take longer to read than most tests to run."""
    return httpx.AsyncClient(base_url=base_url, timeout=timeout, verify=False, trust_env=False)
