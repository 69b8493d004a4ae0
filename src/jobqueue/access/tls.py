"""TLS: certificates and keys of servers and clients, and the names in clients' certificates."""

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
_SUBJECT = 4  # its place after the version
_COMMON_NAME = bytes.fromhex("550403")
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")
_WIDE = {0x1E: "utf-16-be", 0x1C: "utf-32-be"}  # kinds of text with zero bytes in every letter


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate and key; with ``client_ca``, clients must show one of its own."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """Refuse files that cannot be used; the error names the setting."""
        self.read()
        self.context()

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        cert = read_pem(self.cert, "tls.cert")
        key = read_pem(self.key, "tls.key", check_private, check_owner)
        return cert, key, self._read_client_ca()

    def context(self) -> ssl.SSLContext:
        """Return them as an OpenSSL context. Clients may show a certificate, but need not."""
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
    """The TLS files of a client, in PEM. Without ``ca`` the system's roots are trusted."""

    ca: PathText | None = None
    cert: PathText | None = None
    key: PathText | None = None


def tls_of(given: Tls | bool) -> Tls | None:
    """Read the parameter of callers: ``True`` trusts the system's roots."""
    if isinstance(given, bool):
        return Tls() if given else None
    return given


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that a client gives to a server."""

    api_key: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    def __bool__(self) -> bool:
        return self.api_key is not None or self.tls is not None

    def check(self) -> None:
        """Refuse credentials that cannot be used; the error names the parameter."""
        key = self.api_key
        if key is not None and (not key or not key.isascii() or not key.isprintable()):
            raise InvalidArgument("api_key", "must be printable ASCII characters")
        tls = self.tls
        if tls is None:
            return
        if (tls.cert is None) != (tls.key is None):
            raise InvalidArgument("tls", "a client certificate takes both cert and key")
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
    # gRPC would only report that nothing works; OpenSSL reports the reason.
    with opened(key, "tls.key", judges) as stream:
        try:
            # OpenSSL takes names only. This one names the opened file, which was judged.
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
        raise InvalidArgument(where, f"{file}: holds no certificate") from None


def _no_password() -> str:
    raise ValueError("the key must not be encrypted")


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the common name, or else the first DNS name, of a verified certificate.

    Empty if a name has a NUL in it: programs that read names as C strings, like gRPC, would see
    only the part before it.
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
    """Return True if a name has a NUL in it, or the certificate cannot be read."""
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
    """Yield the tag and value of each item in DER."""
    at = 0
    while at < len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size & 0x80:
            digits = size & 0x7F
            size, at = int.from_bytes(data[at : at + digits]), at + digits
        yield tag, data[at : at + size]
        at += size
