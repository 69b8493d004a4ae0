"""A hash hides how short its key is: no short key is a caller's, least of all the empty one."""

from __future__ import annotations

import hashlib

import pytest

from jobqueue.access.keyring import Keyring, parse_keys
from jobqueue.access.policy import Access, Shown
from jobqueue.core.errors import InvalidArgument, Unauthenticated


def hashed(key: str) -> str:
    return f"ops:operator:sha256={hashlib.sha256(key.encode()).hexdigest()}"


def test_the_hash_of_nothing_is_no_key() -> None:
    """A script that hashes a variable which is not set writes it."""
    with pytest.raises(InvalidArgument, match=r"auth.api_keys: entry 1: .*hash of an empty key"):
        parse_keys([hashed("")], "auth.api_keys")


@pytest.mark.parametrize("key", ["\n", "hunter2", "0123456789abcde"])
def test_a_key_that_is_too_short_is_refused_when_it_is_shown(key: str) -> None:
    access = Access(keys=Keyring(parse_keys([hashed(key)], "auth.api_keys")))
    for shown in (Shown(api_key=(key,)), Shown(authorization=(f"Bearer {key}",))):
        with pytest.raises(Unauthenticated):
            access.identify(shown)
    long = key.rjust(16, "k")
    access = Access(keys=Keyring(parse_keys([hashed(long)], "auth.api_keys")))
    assert access.identify(Shown(api_key=(long,))).name == "ops"
