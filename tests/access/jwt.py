"""Tokens, good and bad."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any


def encode(part: Any) -> str:
    """One part of a token."""
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sign(
    claims: Any, secret: bytes, alg: str = "HS256", digest: str = "sha256", **header: Any
) -> str:
    """A token whose header says ``alg``, signed with ``digest``."""
    text = encode({"alg": alg, "typ": "JWT", **header}) + "." + encode(claims)
    return text + "." + encode(hmac.new(secret, text.encode(), getattr(hashlib, digest)).digest())
