"""Certificates and keys: where they are, and what a client shows to a server."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from jobqueue.core.errors import InvalidArgument

_MAX_BYTES = 1 << 20
_TOO_OPEN = 0o027  # any right of others, and the group's right to write
PathText = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate and key; with ``client_ca``, clients must show one of its own."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """InvalidArgument, naming the setting, for what cannot be used."""
        for name, file in (("cert", self.cert), ("key", self.key), ("client_ca", self.client_ca)):
            if file is not None:
                read_pem(file, f"tls.{name}")
        check_private(self.key, "tls.key")
        _check_pair(self.cert, self.key, self.client_ca, "tls")


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client speaks TLS. Files in PEM; without ``ca`` the system's roots are trusted."""

    ca: PathText | None = None
    cert: PathText | None = None
    key: PathText | None = None


def tls_of(given: Tls | bool) -> Tls | None:
    """As callers write it: ``True`` trusts the system's roots."""
    if isinstance(given, bool):
        return Tls() if given else None
    return given


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows to a server."""

    api_key: str | None = field(default=None, repr=False)
    tls: Tls | None = None

    def __bool__(self) -> bool:
        return self.api_key is not None or self.tls is not None

    def check(self) -> None:
        """InvalidArgument, naming the parameter, for what cannot be used."""
        key = self.api_key
        if key is not None and (not key or not key.isascii() or not key.isprintable()):
            raise InvalidArgument("api_key", "must be printable ASCII characters")
        tls = self.tls
        if tls is None:
            return
        if (tls.cert is None) != (tls.key is None):
            raise InvalidArgument("tls", "a client certificate takes both cert and key")
        for name, file in (("tls.ca", tls.ca), ("tls.cert", tls.cert), ("tls.key", tls.key)):
            if file is not None:
                read_pem(file, name)
        if tls.key is not None:
            check_private(tls.key, "tls.key")
        if tls.cert is not None and tls.key is not None:
            _check_pair(Path(tls.cert), Path(tls.key), None, "tls")
        if tls.ca is not None:
            check_roots(Path(tls.ca), "tls.ca")


def check_private(file: PathText, where: str) -> None:
    """Refuse a file of secrets that others may read or change.

    Its group may read it: so a secret that Kubernetes mounts belongs to the group of the pod.
    """
    try:
        mode = Path(file).stat().st_mode & 0o777
    except OSError as error:
        raise InvalidArgument(where, f"{file}: {error.strerror or error}") from None
    if mode & _TOO_OPEN:
        raise InvalidArgument(
            where,
            f"{file}: others may read or change it (mode {mode:03o}); run chmod 600 {file}",
        )


def read_pem(file: PathText, where: str) -> bytes:
    """A file's content."""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(where, f"{file}: {error.strerror or error}") from None
    if len(content) > _MAX_BYTES or b"-----BEGIN " not in content:
        raise InvalidArgument(where, f"{file}: is not a PEM file")
    return content


def _check_pair(cert: Path, key: Path, client_ca: Path | None, where: str) -> None:
    """gRPC would only say that nothing works; OpenSSL says what."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidArgument(
            where, f"{cert} and {key} are not a certificate and its key: {reason}"
        ) from None
    if client_ca is not None:
        check_roots(client_ca, f"{where}.client_ca")


def check_roots(file: Path, where: str) -> None:
    """A file with authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError, ValueError):
        raise InvalidArgument(where, f"{file}: holds no certificate") from None


def _no_password() -> str:
    raise ValueError("the key must not be encrypted")
