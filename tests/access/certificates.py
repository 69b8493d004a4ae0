"""Certificates made for one test run, with the openssl program."""

from __future__ import annotations

import datetime
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests import patience


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates. Everything it makes is in its folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.ca = folder / "ca.pem"
        self._key = folder / "ca.key"
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.ca, "-days", "2",
            "-subj", "/CN=test authority", "-addext", "basicConstraints=critical,CA:TRUE",
        )  # fmt: skip

    def issue(self, name: str, alternative: str = "", subject: str | None = None) -> Pair:
        """A certificate for that common name, and alternative names as ``IP:127.0.0.1``."""
        made = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request = self._folder / f"{name}.csr"
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative or f'DNS:{name}.example'}\n")
        chosen = f"/CN={name}" if subject is None else subject
        _openssl("req", *_NEW_KEY, "-keyout", made.key, "-out", request, "-subj", chosen)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-days", "2",
            "-CAcreateserial", "-extfile", extensions, "-out", made.cert,
        )  # fmt: skip
        return made

    def issue_any(self, name: str, common: str = "", dns: str = "") -> Pair:
        """A certificate for names that openssl's command line cannot write."""
        made = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        key = ec.generate_private_key(ec.SECP256R1())
        signer = serialization.load_pem_private_key(self._key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        now = datetime.datetime.now(datetime.UTC)
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "nobody")]
        subject += [x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else []
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(x509.load_pem_x509_certificate(self.ca.read_bytes()).subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        if dns:
            names = x509.SubjectAlternativeName([x509.DNSName(dns)])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(signer, hashes.SHA256())
        made.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        made.key.touch(0o600)
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*args: str | Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("needs the openssl program (apt install openssl)")
    subprocess.run(
        [program, *map(str, args)], check=True, capture_output=True, timeout=patience.longest(30)
    )


@dataclass(frozen=True)
class Certificates:
    """What the tests of TLS need."""

    ca: Path
    server: Pair
    alice: Pair
    worker: Pair
    nameless: Pair  # no common name, only an alternative one
    stranger: Pair  # signed by somebody else


def make(folder: Path) -> Certificates:
    """All of it."""
    ours = Authority(folder / "ours")
    return Certificates(
        ours.ca,
        ours.issue("server", "IP:127.0.0.1,DNS:localhost"),
        ours.issue("alice"),
        ours.issue("worker"),
        ours.issue("nameless", "DNS:spare.example", subject="/O=nobody"),
        Authority(folder / "theirs").issue("alice"),
    )
