"""Read the public keys of token issuers from a PEM file or a key set (JWKS, RFC 7517).

This module needs the package cryptography. Only a server with a key file imports this module.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from jobqueue.access.files import check_owner, check_regular, check_unchangeable, read_judged
from jobqueue.access.signatures import MAX_TRIES, VerificationKey
from jobqueue.core.clock import Clock
from jobqueue.core.errors import InvalidArgument

MAX_FILE_BYTES = 256 * 1024
MAX_KEYS = 64
MIN_RSA_BITS = 2048
CHECK_SECONDS = 1.0  # the file is checked for changes at most this often
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_JWK_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)

log = logging.getLogger("jobqueue.access")


class KeyFile:
    """Reads public keys from a file, and reads the file again when it has changed."""

    def __init__(self, file: Path, where: str, clock: Clock) -> None:
        """Read the keys. Raise InvalidArgument, with the setting ``where``, if no key is usable."""
        self._file = file
        self._where = where
        self._clock = clock
        self._looked_at = clock.now()
        self._seen = self._mark()
        self._keys = self._read()

    def keys(self) -> list[VerificationKey]:
        """Return the keys. If the file has become unusable, return the keys read before."""
        now = self._clock.now()
        if abs(now - self._looked_at) >= CHECK_SECONDS:
            self._looked_at = now
            mark = self._mark()
            if mark != self._seen:
                self._seen = mark
                self._read_again()
        return self._keys

    def _read_again(self) -> None:
        try:
            self._keys = self._read()
        except InvalidArgument as error:
            log.warning("cannot use %s; the keys read before stay valid", error.message)
        else:
            log.info("read %d public keys for tokens from %s", len(self._keys), self._file)

    def _mark(self) -> object:
        """Return a value that changes when the file changes."""
        try:
            found = self._file.stat()
        except OSError as error:
            return error.errno
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _read(self) -> list[VerificationKey]:
        judges = check_regular, check_unchangeable, check_owner
        content = read_judged(self._file, self._where, MAX_FILE_BYTES, *judges)
        try:
            return parse_keys(content)
        except ValueError as error:
            raise InvalidArgument(self._where, f"{self._file}: {error}") from None


def parse_keys(content: bytes) -> list[VerificationKey]:
    """Parse the public keys in a file's content. Raise ValueError if no key is usable."""
    blocks = list(_PEM.finditer(content))
    keys = _from_pem(blocks) if blocks else _from_key_set(content)
    if not keys:
        raise ValueError("contains no key for checking signatures")
    return keys


def _from_pem(blocks: list[re.Match[bytes]]) -> list[VerificationKey]:
    if len(blocks) > MAX_TRIES:
        # PEM keys have no names, so every token is checked with each key.
        raise ValueError(f"has more than {MAX_TRIES} PEM keys; use a key set (JWKS) for more")
    keys = []
    for number, block in enumerate(blocks, 1):
        label = block[1].decode()
        if "PRIVATE" in label:
            raise ValueError(_private(number))
        if label == "CERTIFICATE":
            raise ValueError(
                f"key {number} is a certificate; get its key: openssl x509 -pubkey -noout -in FILE"
            )
        try:
            public = load_pem_public_key(block[0])
        except (ValueError, UnsupportedAlgorithm):
            raise ValueError(f"key {number} is not a public key in PEM") from None
        fits = _algorithms(public, number)
        if not fits:
            raise ValueError(f"key {number} must be RSA, EC (P-256, P-384, P-521) or Ed25519")
        keys.append(VerificationKey(None, fits, public))
    return keys


def _from_key_set(content: bytes) -> list[VerificationKey]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("is neither PEM nor a key set (JWKS)") from None
    members = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(members, list):
        raise ValueError('is not a key set (JWKS): it must be {"keys": [...]}')
    if len(members) > MAX_KEYS:
        raise ValueError(f"has more than {MAX_KEYS} keys")
    found = (_from_jwk(member, number) for number, member in enumerate(members, 1))
    return [key for key in found if key is not None]


def _from_jwk(member: Any, number: int) -> VerificationKey | None:
    """Parse one key of a key set; None if the key is not for checking signatures.

    Issuers publish keys for other purposes in the same set.
    """
    if not isinstance(member, dict):
        raise ValueError(f"key {number} must be an object")
    kind, kid, named = member.get("kty"), member.get("kid"), member.get("alg")
    if kind == "oct":
        raise ValueError(f"key {number} is a shared secret; it belongs in auth.jwt_secret")
    if "d" in member:
        raise ValueError(_private(number))
    if kid is not None and not isinstance(kid, str):
        raise ValueError(f"key {number}: its kid must be text")
    operations = member.get("key_ops", ["verify"])
    if not isinstance(operations, list):
        raise ValueError(f"key {number}: its key_ops must be a list")
    if member.get("use", "sig") != "sig" or "verify" not in operations:
        return None
    # The algorithm only tells PyJWK the format of the key here.
    curve = member.get("crv")
    form = "RS256" if kind == "RSA" else _JWK_CURVES.get(curve) if isinstance(curve, str) else None
    if form is None or (kind == "OKP") != (form == "EdDSA"):
        return None
    try:
        public = jwt.PyJWK(member, form).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise ValueError(f"key {number} is not a public key ({kind})") from None
    fits = _algorithms(public, number)
    if named is not None:
        fits = frozenset(name for name in fits if name == named)
    return VerificationKey(kid, fits, public) if fits else None


def _algorithms(public: Any, number: int) -> frozenset[str]:
    """Return the algorithms that a key of this kind may check, whatever a token asks for."""
    if isinstance(public, RSAPublicKey):
        if public.key_size < MIN_RSA_BITS:
            raise ValueError(
                f"key {number} has {public.key_size} bits; an RSA key needs {MIN_RSA_BITS} or more"
            )
        return _RSA
    if isinstance(public, EllipticCurvePublicKey):
        known = _CURVES.get(public.curve.name)
        return frozenset([known] if known else [])
    return frozenset(["EdDSA"] if isinstance(public, Ed25519PublicKey) else [])


def _private(number: int) -> str:
    return f"key {number} is a private key; give the server a public key, and keep this one secret"
