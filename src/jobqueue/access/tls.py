"""Certificates and keys: where they are, and what a client shows to a server."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

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
        for name, file in (("cert", self.cert), ("key", self.key), ("client_ca", self.client_ca)):
            if file is not None:
                read_pem(file, f"tls.{name}")
        check_private(self.key, "tls.key")
        check_owner(self.key, "tls.key")
        if self.client_ca is not None:
            check_unchangeable(self.client_ca, "tls.client_ca")
            check_owner(self.client_ca, "tls.client_ca")
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
            check_unchangeable(tls.ca, "tls.ca")
            check_roots(Path(tls.ca), "tls.ca")


def read_judged(
    file: PathText,
    where: str,
    largest: int,
    *judges: Callable[[PathText, str, os.stat_result], None],
) -> bytes:
    """A file's content. It is opened once, and judged before it is read.

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
            content = stream.read(largest + 1)
    except OSError as error:
        raise InvalidArgument(where, f"{file}: {error.strerror or error}") from None
    if len(content) > largest:
        raise InvalidArgument(where, f"{file}: is larger than {largest} bytes")
    return content


def check_regular(file: PathText, where: str, found: os.stat_result) -> None:
    """Refuse what cannot be read again, or does not end."""
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(where, f"{file}: is not a regular file")


def check_private(file: PathText, where: str, found: os.stat_result | None = None) -> None:
    """Refuse a file of secrets that others may read or change.

    Its group may read it: so a secret that Kubernetes mounts belongs to the group of the pod.
    ``found`` is what the file that was opened says of itself.
    """
    mode = (found or _status(file, where)).st_mode & 0o777
    if mode & _TOO_OPEN:
        raise InvalidArgument(
            where,
            f"{file}: others may read or change it (mode {mode:03o}); run chmod 600 {file}",
        )


def check_unchangeable(file: PathText, where: str, found: os.stat_result | None = None) -> None:
    """Refuse a file that says whom to trust, and that others may change."""
    mode = (found or _status(file, where)).st_mode & 0o777
    if mode & _CHANGEABLE:
        raise InvalidArgument(
            where, f"{file}: others may change it (mode {mode:03o}); run chmod go-w {file}"
        )


def check_owner(file: PathText, where: str, found: os.stat_result | None = None) -> None:
    """Refuse the file of another user where we are root, who can read every file.

    Anybody else can read it only because its owner wants that.
    """
    owner = (found or _status(file, where)).st_uid
    if os.geteuid() == 0 and owner != 0:
        raise InvalidArgument(
            where,
            f"{file}: belongs to user {owner}, who may change it; run chown root {file},"
            " or start this as that user",
        )


def _status(file: PathText, where: str) -> os.stat_result:
    try:
        return Path(file).stat()
    except OSError as error:
        raise InvalidArgument(where, f"{file}: {error.strerror or error}") from None


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
