"""Certificates and keys: where they are, and what a client shows to a server."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from jobqueue.core.errors import InvalidArgument

_MAX_BYTES = 1 << 20
_TOO_OPEN = 0o027  # any right of others, and the group's right to write
_CHANGEABLE = 0o022
PathText = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's certificate and key; with ``client_ca``, clients must show one of its own."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def check(self) -> None:
        """InvalidArgument, naming the setting, for what cannot be used."""
        self.read()
        self.context()

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """The certificate, the key and the authorities."""
        cert = read_pem(self.cert, "tls.cert")
        key = read_pem(self.key, "tls.key", check_private, check_owner)
        return cert, key, self._read_client_ca()

    def context(self) -> ssl.SSLContext:
        """The same, as OpenSSL uses it. A client may show a certificate, but need not."""
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
        read_client_files(tls)
        if tls.cert is not None and tls.key is not None:
            _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls.cert, tls.key, check_private)
        if tls.ca is not None:
            check_roots(tls.ca, "tls.ca", check_unchangeable)


def read_client_files(tls: Tls) -> tuple[bytes | None, bytes | None, bytes | None]:
    """A client's authorities, its key and its certificate."""
    ca = None if tls.ca is None else read_pem(tls.ca, "tls.ca", check_unchangeable)
    key = None if tls.key is None else read_pem(tls.key, "tls.key", check_private)
    return ca, key, None if tls.cert is None else read_pem(tls.cert, "tls.cert")


Judge = Callable[[PathText, str, os.stat_result], None]


@contextmanager
def _opened(file: PathText, where: str, judges: tuple[Judge, ...]) -> Iterator[BinaryIO]:
    """A file that is opened once, and judged before it is read.

    A file that is judged by its name may be another one by the time that it is opened.
    """
    try:
        # Without O_NONBLOCK a pipe would stop the server until somebody writes to it.
        number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as stream:
            found = os.fstat(number)
            for judge in judges:
                judge(file, where, found)
            os.set_blocking(number, True)
            yield stream
    except OSError as error:
        raise InvalidArgument(where, f"{file}: {error.strerror or error}") from None


def read_judged(file: PathText, where: str, largest: int, *judges: Judge) -> bytes:
    """A file's content."""
    with _opened(file, where, judges) as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise InvalidArgument(where, f"{file}: is larger than {largest} bytes")
    return content


def check_regular(file: PathText, where: str, found: os.stat_result) -> None:
    """Refuse what cannot be read again, or does not end."""
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(where, f"{file}: is not a regular file")


def check_private(file: PathText, where: str, found: os.stat_result) -> None:
    """Refuse a file of secrets that others may read or change.

    Its group may read it: so a secret that Kubernetes mounts belongs to the group of the pod.
    """
    mode = found.st_mode & 0o777
    if mode & _TOO_OPEN:
        raise InvalidArgument(
            where,
            f"{file}: others may read or change it (mode {mode:03o}); run chmod 600 {file}",
        )


def check_unchangeable(file: PathText, where: str, found: os.stat_result) -> None:
    """Refuse a file that says whom to trust, and that others may change."""
    mode = found.st_mode & 0o777
    if mode & _CHANGEABLE:
        raise InvalidArgument(
            where, f"{file}: others may change it (mode {mode:03o}); run chmod go-w {file}"
        )


def check_owner(file: PathText, where: str, found: os.stat_result) -> None:
    """Refuse the file of another user where we are root, who can read every file.

    Anybody else can read it only because its owner wants that.
    """
    owner = found.st_uid
    if os.geteuid() == 0 and owner != 0:
        raise InvalidArgument(
            where,
            f"{file}: belongs to user {owner}, who may change it; run chown root {file},"
            " or start this as that user",
        )


def read_pem(file: PathText, where: str, *judges: Judge) -> bytes:
    """A file's content."""
    content = read_judged(file, where, _MAX_BYTES, *judges)
    if b"-----BEGIN " not in content:
        raise InvalidArgument(where, f"{file}: is not a PEM file")
    return content


def _load_pair(context: ssl.SSLContext, cert: PathText, key: PathText, *judges: Judge) -> None:
    """gRPC would only say that nothing works; OpenSSL says what."""
    with _opened(key, "tls.key", judges) as stream:
        try:
            # OpenSSL takes names only. This one is that of the file which was judged.
            opened = f"/dev/fd/{stream.fileno()}"
            context.load_cert_chain(cert, opened, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise InvalidArgument(
                "tls", f"{cert} and {key} are not a certificate and its key: {reason}"
            ) from None


def check_roots(file: PathText, where: str, *judges: Judge) -> None:
    """A file with authorities."""
    content = read_pem(file, where, *judges)
    _load_roots(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), content, f"{file}", where)


def _load_roots(context: ssl.SSLContext, content: bytes, file: str, where: str) -> None:
    try:
        # What is not ASCII is a comment.
        context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise InvalidArgument(where, f"{file}: holds no certificate") from None


def _no_password() -> str:
    raise ValueError("the key must not be encrypted")
