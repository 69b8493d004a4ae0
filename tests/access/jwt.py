"""Tokens, good and bad, and the issuers that sign them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


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


class Issuer:
    """A key pair for one algorithm; its ``kid`` is in its tokens and in its public key."""

    def __init__(self, alg: str, kid: str | None = None, bits: int = 2048) -> None:
        self.alg = alg
        self.kid = kid
        self.private: Any
        if alg == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
        elif alg in CURVES:
            self.private = ec.generate_private_key(CURVES[alg])
        else:
            self.private = rsa.generate_private_key(65537, bits)
        self.public = self.private.public_key()

    def token(self, claims: Any, **header: Any) -> str:
        """A token that this issuer signed."""
        named = {} if self.kid is None else {"kid": self.kid}
        return jwt.encode(claims, self.private, self.alg, headers=named | header)

    def pem(self) -> bytes:
        """The public key, as ``openssl pkey -pubout`` writes it."""
        return self.public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def private_pem(self) -> bytes:
        return self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def jwk(self, **changes: Any) -> dict[str, Any]:
        """The public key as a member of a key set; a change to None leaves the member out."""
        algorithm = jwt.get_algorithm_by_name(self.alg)
        made = {**algorithm.to_jwk(self.public, as_dict=True), "use": "sig", "kid": self.kid}
        made.pop("key_ops", None)
        return {name: value for name, value in (made | changes).items() if value is not None}


def key_set(*keys: Issuer | dict[str, Any]) -> str:
    """A JWKS file's text."""
    return json.dumps({"keys": [key.jwk() if isinstance(key, Issuer) else key for key in keys]})
