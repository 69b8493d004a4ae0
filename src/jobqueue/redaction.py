"""Takes secrets out of text before a person or a file sees it."""

from __future__ import annotations

import re

MASK = "***"
# ``scheme://user:secret@host``: everything after the colon up to the last @, because people do
# not always escape what they should. ``host:8080/`` is a port, not a secret.
_IN_URL = re.compile(r"""(://[^\s/:@"']*:)(?!\d+(?:[/?#\s"']|$))[^\s"']+@""")
_IN_QUERY = re.compile(r"""(?i)\b(password|passwd|pwd|secret|token)=[^\s&;"']+""")
_IN_HEADER = re.compile(r"(?i)\b(bearer|x-api-key:)(\s+)[\w.~+/=-]{8,}")


def redact(text: str) -> str:
    """Mask the passwords in URLs and connection strings, and the keys in headers."""
    if "://" in text:
        text = _IN_URL.sub(rf"\1{MASK}@", text)
    if "=" in text:
        text = _IN_QUERY.sub(rf"\1={MASK}", text)
    if " " in text:
        text = _IN_HEADER.sub(rf"\1\2{MASK}", text)
    return text


def holds_secret(text: str) -> bool:
    """Whether ``redact`` would mask something."""
    return redact(text) != text
