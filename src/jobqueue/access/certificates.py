"""Names in a client's certificate. Some end early for programs that read them as C strings."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

_VERSION, _EXTENSIONS, _DNS_NAME = 0xA0, 0xA3, 0x82  # tags
_SUBJECT = 4  # its place after the version
_COMMON_NAME = bytes.fromhex("550403")
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")
_WIDE = {0x1E: "utf-16-be", 0x1C: "utf-32-be"}  # kinds of text that have zero bytes anyway


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name, or else the first DNS name, of a certificate that was verified.

    Empty if one of these names has a NUL in it: gRPC knows only what stands before that.
    """
    if not certificate:
        return ""
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    common = [str(value) for key, value in subject if key == "commonName"]
    others = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    if any("\0" in name for name in common + others):
        return ""
    return next(filter(None, common[:1] + others[:1]), "")


@lru_cache(1024)
def has_nul(pem: bytes) -> bool:
    """Whether a common name or a DNS name has a NUL in it, or the certificate cannot be read."""
    try:
        return any("\0" in name for name in _names(ssl.PEM_cert_to_DER_cert(pem.decode())))
    except (ValueError, IndexError):
        return True


def _names(certificate: bytes) -> Iterator[str]:
    fields = list(_items(_inside(_inside(certificate))))
    if fields[0][0] == _VERSION:
        del fields[0]
    for _, part in _items(fields[_SUBJECT][1]):
        for _, pair in _items(part):
            (_, kind), (tag, value) = _items(pair)
            if kind == _COMMON_NAME:
                yield value.decode(_WIDE.get(tag, "latin-1"))
    for tag, extensions in fields:
        if tag == _EXTENSIONS:
            for _, extension in _items(_inside(extensions)):
                (_, kind), *_, (_, value) = _items(extension)
                if kind == _ALTERNATIVE_NAMES:
                    names = _items(_inside(value))
                    yield from (name.decode("latin-1") for tag, name in names if tag == _DNS_NAME)


def _inside(data: bytes) -> bytes:
    return next(_items(data), (0, b""))[1]


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tags and values that stand in DER one after the other."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(data[at : at + digits]), at + digits
        yield tag, data[at : at + size]
        at += size
