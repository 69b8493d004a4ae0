"""Load TLS certificates and keys of servers and clients, and read names in client certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from jobqueue.access.files import (
    Judge,
    PathText,
    check_owner,
    check_private,
    check_unchangeable,
    opened,
    read_judged,
)
from jobqueue.core.errors import InvalidArgument

_MAX_BYTES = 1 << 20
_VERSION, _EXTENSIONS, _DNS_NAME = 0xA0, 0xA3, 0x82  # tags in DER
_SUBJECT = 4  # its index after the version
_COMMON_NAME = bytes.fromhex("550403")
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")
_WIDE = {0x1E: "utf-16-be", 0x1C: "utf-32-be"}  # text encodings whose letters contain zero bytes


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Names a server's certificate and key files.

    With ``client_ca``, the server accepts client certificates that this authority signed.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Raise InvalidArgument, which names the setting, if a file cannot be used."""
        self.read()
        self.context()

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        cert = read_pem(self.cert, "tls.cert")
        key = read_pem(self.key, "tls.key", check_private, check_owner)
        return cert, key, self._read_client_ca()

    def context(self) -> ssl.SSLContext:
        """Return the files as an OpenSSL context. Clients may send a certificate, but need not."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load_pair(context, self.cert, self.key, check_private, check_owner)
        client_ca = self._read_client_ca()
        if client_ca is not None:
            _load_roots(context, client_ca, f"{self.client_ca}", "tls.client_ca")
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _read_client_ca(self) -> bytes | None:
        if self.client_ca is None:
            return None
        return read_pem(self.client_ca, "tls.client_ca", check_unchangeable, check_owner)


@dataclass(frozen=True, slots=True)
class Tls:
    """Names a client's TLS files in PEM. Without ``ca`` the client trusts the system's roots."""

    ca: PathText | None = None
    cert: PathText | None = None
    key: PathText | None = None


def tls_of(given: Tls | bool) -> Tls | None:
    """Return the TLS files for a ``tls`` parameter; ``True`` trusts the system's roots."""
    if isinstance(given, bool):
        return Tls() if given else None
    return given


@dataclass(frozen=True, slots=True)
class Credentials:
    """Holds the credentials that a client sends to a server."""

    api_key: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    def __bool__(self) -> bool:
        return self.api_key is not None or self.tls is not None

    def check(self) -> None:
        """Raise InvalidArgument, which names the parameter, if a credential cannot be used."""
        key = self.api_key
        if key is not None and (not key or not key.isascii() or not key.isprintable()):
            raise InvalidArgument("api_key", "must have one or more printable ASCII characters")
        tls = self.tls
        if tls is None:
            return
        if (tls.cert is None) != (tls.key is None):
            raise InvalidArgument("tls", "a client certificate needs both cert and key")
        read_client_files(tls)
        if tls.cert is not None and tls.key is not None:
            _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls.cert, tls.key, check_private)
        if tls.ca is not None:
            check_roots(tls.ca, "tls.ca", check_unchangeable)


def read_client_files(tls: Tls) -> tuple[bytes | None, bytes | None, bytes | None]:
    ca = None if tls.ca is None else read_pem(tls.ca, "tls.ca", check_unchangeable)
    key = None if tls.key is None else read_pem(tls.key, "tls.key", check_private)
    return ca, key, None if tls.cert is None else read_pem(tls.cert, "tls.cert")


def read_pem(file: PathText, where: str, *judges: Judge) -> bytes:
    content = read_judged(file, where, _MAX_BYTES, *judges)
    if b"-----BEGIN " not in content:
        raise InvalidArgument(where, f"{file}: is not a PEM file")
    return content


def _load_pair(context: ssl.SSLContext, cert: PathText, key: PathText, *judges: Judge) -> None:
    # gRPC would not report why the files fail; OpenSSL reports the reason.
    with opened(key, "tls.key", judges) as stream:
        try:
            # OpenSSL accepts names only. This name belongs to the opened file, which was checked.
            name = f"/dev/fd/{stream.fileno()}"
            context.load_cert_chain(cert, name, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise InvalidArgument(
                "tls", f"{cert} and {key} are not a certificate and its key: {reason}"
            ) from None


def check_roots(file: PathText, where: str, *judges: Judge) -> None:
    content = read_pem(file, where, *judges)
    _load_roots(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), content, f"{file}", where)


def _load_roots(context: ssl.SSLContext, content: bytes, file: str, where: str) -> None:
    try:
        # Text that is not ASCII is a comment.
        context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise InvalidArgument(where, f"{file}: contains no certificate") from None


def _no_password() -> str:
    raise ValueError("the key must not be encrypted")


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """Return a verified certificate's common name, or its first DNS name if it has no common name.

    Return an empty name if any name contains a NUL character: programs that read names as C
    strings, like gRPC, would read only the part before the NUL.
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
    """Return True if a name in the certificate contains a NUL, or the certificate is unreadable."""
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
    """Yield the tag and value of each item in DER-encoded data."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(data[at : at + digits]), at + digits
        yield tag, data[at : at + size]
        at += size
