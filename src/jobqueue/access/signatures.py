"""Check the signatures of tokens with PyJWT. Only a server that accepts tokens imports this module.

A key is used only with the algorithms of its own kind. A token that names an algorithm of another
kind is refused, and a public key is never used as a shared secret.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jwt
from jwt.algorithms import HMACAlgorithm

from jobqueue.access.tokens import not_valid
from jobqueue.core.errors import Unauthenticated

HMAC = {"HS256": HMACAlgorithm.SHA256, "HS384": HMACAlgorithm.SHA384, "HS512": HMACAlgorithm.SHA512}
MAX_TRIES = 4
"""The most keys that one token is checked with: one check needs up to half a millisecond."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """Holds a key that checks signatures.

    ``kid`` is the key's name; None if the key has no name.
    """

    kid: str | None
    algorithms: frozenset[str]
    material: Any = field(repr=False)


class _SharedSecret(HMACAlgorithm):
    """Uses a shared secret without checking it again: ``secret_key`` has checked it."""

    def prepare_key(self, key: str | bytes) -> bytes:
        return key if isinstance(key, bytes) else key.encode()

    def check_key_length(self, key: bytes) -> str | None:
        return None


def secret_key(secret: bytes) -> VerificationKey:
    """Return a key made from a shared secret. Raise ValueError if the secret is a public key."""
    try:
        material = HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(secret)
    except jwt.InvalidKeyError:
        raise ValueError(
            "is a public key, not a secret; put the key into the file of auth.jwt_keys_file"
        ) from None
    return VerificationKey(None, frozenset(HMAC), material)


class SignatureChecker:
    """Finds the key that fits a token, and checks the token's signature with that key."""

    def __init__(
        self, algorithms: frozenset[str], keys: Callable[[], list[VerificationKey]]
    ) -> None:
        self._algorithms = algorithms
        self._keys = keys
        self._jws = jwt.PyJWS()
        for name, digest in HMAC.items():
            self._jws.unregister_algorithm(name)
            self._jws.register_algorithm(name, _SharedSecret(digest))

    def payload(self, token: str, algorithm: str, kid: str | None) -> bytes:
        """Return the payload of a token. Raise Unauthenticated if no key confirms the signature.

        ``algorithm`` and ``kid`` are the values in the token's header.
        """
        if algorithm not in self._algorithms:
            raise not_valid()
        fitting = [
            key
            for key in self._keys()
            if algorithm in key.algorithms and (kid is None or key.kid in (None, kid))
        ]
        if len(fitting) > MAX_TRIES:
            raise Unauthenticated("the token must name its key in its header (kid)")
        for key in fitting:
            with suppress(jwt.PyJWTError):
                checked: bytes = self._jws.decode(token, key.material, [algorithm])
                return checked
        raise not_valid()
