"""What every answer tells a browser, so that web pages elsewhere cannot use it.

Apart from the rest of HTTP: a process whose only page is /metrics loads nothing else of it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
HEADER_LINES = b"".join(b"%b: %b\r\n" % header for header in (*_HEADERS, _POLICY))
"""The same for an answer that is written by hand."""


def protect(start: MutableMapping[str, Any]) -> None:
    """Add to the beginning of an answer what browsers are told. A page has a policy of its own."""
    given = start.get("headers", ())
    policy = () if _POLICY[0] in dict(given) else (_POLICY,)
    start["headers"] = [*given, *_HEADERS, *policy]
