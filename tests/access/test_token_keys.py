"""Public keys of issuers: read from PEM files and key sets, each for its own algorithms only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from jobqueue.access.public_keys import CHECK_SECONDS, MAX_FILE_BYTES, MAX_KEYS
from jobqueue.access.signatures import MAX_TRIES
from jobqueue.access.tokens import ALGORITHMS, PUBLIC_KEY, TokenVerifier
from jobqueue.core.errors import InvalidArgument, Unauthenticated
from tests.access.conftest import SECRET
from tests.access.jwt import Issuer, encode, key_set, sign

pytestmark = pytest.mark.req("inp:PROD")


@cache
def issuer(alg: str, kid: str | None = None, bits: int = 2048) -> Issuer:
    """RSA keys take long to make."""
    return Issuer(alg, kid, bits)


@pytest.fixture
def claims(clock):
    return {"sub": "ann", "roles": ["client"], "exp": clock.now() + 60}


@pytest.fixture
def verifier(clock, tmp_path):
    """Makes a verifier of a file with this content."""

    def make(content: str | bytes, secret: bytes = b"", algorithms=ALGORITHMS) -> TokenVerifier:
        file = tmp_path / "keys"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(0o644)
        return TokenVerifier(secret, clock, keys_file=file, algorithms=algorithms, audience="")

    return make


def refused(verifier: TokenVerifier, token: str) -> bool:
    try:
        verifier.verify(token)
    except Unauthenticated:
        return True
    return False


@pytest.mark.parametrize("alg", PUBLIC_KEY)
@pytest.mark.parametrize("form", ["pem", "jwks"])
def test_every_algorithm_with_a_key_of_its_kind(verifier, claims, alg, form):
    one = issuer(alg)
    made = verifier(one.pem() if form == "pem" else key_set(one))
    assert made.verify(one.token(claims)).name == "ann"
    assert refused(made, Issuer(alg).token(claims))


@pytest.mark.parametrize("alg", PUBLIC_KEY)
def test_a_key_is_for_its_own_kind_of_algorithm_only(verifier, claims, alg):
    """Nor does a public key stand in for a secret, or a secret for a public key."""
    signed = issuer(alg).token(claims)
    others = [other for other in PUBLIC_KEY if other[:2] not in (alg[:2], "RS", "PS")]
    for other in [*others, "ES384" if alg != "ES384" else "ES256"]:
        assert refused(verifier(issuer(other).pem(), SECRET), signed)
    made = verifier(issuer(alg).pem(), SECRET)
    for hmac in ("HS256", "HS384", "HS512"):
        assert refused(made, sign(claims, issuer(alg).pem(), hmac, f"sha{hmac[2:]}"))
    header, body, signature = sign(claims, SECRET).split(".")
    assert refused(made, f"{encode({'alg': alg})}.{body}.{signature}")
    assert made.verify(f"{header}.{body}.{signature}").name == "ann"


def test_the_listed_algorithms_are_accepted_only(verifier, claims):
    key = issuer("RS512")
    assert refused(verifier(key.pem(), algorithms=["RS256", "HS512"]), key.token(claims))
    # In a key set a key may be bound to one of them.
    assert verifier(key_set(key.jwk(alg="RS512"))).verify(key.token(claims)).name == "ann"
    with pytest.raises(InvalidArgument, match="contains no key for checking"):
        verifier(key_set(key.jwk(alg="RSA-OAEP")))
    bound = verifier(key_set(key.jwk(alg="RS256"), issuer("EdDSA")))
    assert refused(bound, key.token(claims))


def test_a_key_is_chosen_by_its_name(verifier, claims):
    one, two, nameless = issuer("ES256", "1"), issuer("ES256", "2"), issuer("ES256")
    named = verifier(key_set(one, two))
    for each in (one, two):
        assert named.verify(each.token(claims)).name == "ann"
        assert named.verify(_without_name(each).token(claims)).name == "ann"
    assert refused(named, one.token(claims, kid="2"))
    assert refused(named, one.token(claims, kid="3"))
    # A key without a name is good for every token.
    assert verifier(nameless.pem()).verify(nameless.token(claims, kid="any")).name == "ann"


def _without_name(one: Issuer) -> Issuer:
    copy = Issuer.__new__(Issuer)
    copy.__dict__.update(one.__dict__ | {"kid": None})
    return copy


def test_a_token_is_checked_with_a_few_keys_only(verifier, claims):
    keys = [Issuer("ES256", str(number)) for number in range(MAX_TRIES + 1)]
    made = verifier(key_set(*keys))
    assert made.verify(keys[-1].token(claims)).name == "ann"
    with pytest.raises(Unauthenticated, match="must name its key"):
        made.verify(_without_name(keys[-1]).token(claims))


def test_keys_for_something_else_are_passed_over(verifier, claims):
    good = issuer("EdDSA", "good")
    others = [
        issuer("RS256", "a").jwk(use="enc"),
        issuer("RS256", "a").jwk(use=None, key_ops=["encrypt"]),
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        {"kty": "new"},
    ]
    assert verifier(key_set(*others, good)).verify(good.token(claims)).name == "ann"


def _bad_files() -> dict[str, tuple[str | bytes, str]]:
    key = issuer("RS256")
    private = key.jwk(d="AQAB")
    small = issuer("RS256", None, 1024)
    return {
        "empty": (b"", "neither PEM nor a key set"),
        "binary": (bytes(range(256)), "neither PEM nor a key set"),
        "deep": ("[" * 100_000, "neither PEM nor a key set"),
        "list": ("[]", "is not a key set"),
        "no list": ('{"keys": {}}', "is not a key set"),
        "no keys": ('{"keys": []}', "contains no key for checking signatures"),
        "no object": ('{"keys": [1]}', "key 1 must be an object"),
        "kid": (key_set(key.jwk(kid=7)), "key 1: its kid must be text"),
        "operations": (key_set(key.jwk(key_ops=5)), "key 1: its key_ops must be a list"),
        "private": (key_set(key, private), "key 2 is a private key"),
        "secret": (key_set({"kty": "oct", "k": "AAAA"}), "it belongs in auth.jwt_secret"),
        "broken": (key_set(key.jwk(n="AQ")), "key 1 is not a public key"),
        "half": (key_set(key.jwk(n=None) | {"n": 5}), "key 1 is not a public key"),
        "small": (key_set(small), "key 1 has 1024 bits; an RSA key needs 2048 or more"),
        "small PEM": (small.pem(), "key 1 has 1024 bits"),
        "many": (key_set(*[issuer("EdDSA").jwk()] * (MAX_KEYS + 1)), f"more than {MAX_KEYS} keys"),
        "many PEM": (issuer("EdDSA").pem() * (MAX_TRIES + 1), f"more than {MAX_TRIES} PEM keys"),
        "large": (b" " * (MAX_FILE_BYTES + 1), "is larger than"),
        "private PEM": (key.private_pem(), "key 1 is a private key"),
        "broken PEM": (key.pem().replace(b"M", b"N"), "key 1 is not a public key in PEM"),
        "certificate": (
            b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
            "openssl x509 -pubkey",
        ),
    }


@pytest.mark.parametrize("case", _bad_files())
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(verifier, case):
    content, reason = _bad_files()[case]
    with pytest.raises(InvalidArgument) as caught:
        verifier(content)
    assert caught.value.message.startswith("auth.jwt_keys_file: ")
    assert reason in caught.value.message


def test_a_file_that_others_may_change_is_refused(verifier, tmp_path, clock):
    verifier(issuer("EdDSA").pem())
    for mode in (0o664, 0o646):
        (tmp_path / "keys").chmod(mode)
        with pytest.raises(InvalidArgument, match=f"mode {mode:o}.*chmod go-w"):
            TokenVerifier(b"", clock, keys_file=tmp_path / "keys", audience="")
    with pytest.raises(InvalidArgument, match="No such file"):
        TokenVerifier(b"", clock, keys_file=tmp_path / "nothing", audience="")
    os.mkfifo(tmp_path / "pipe")
    for other in ("pipe", "."):
        with pytest.raises(InvalidArgument, match=r"not a regular file|Is a directory"):
            TokenVerifier(b"", clock, keys_file=tmp_path / other, audience="")


def test_a_file_is_looked_at_once_a_second(verifier, claims, clock, tmp_path, caplog):
    old, new = Issuer("EdDSA", "old"), Issuer("EdDSA", "new")
    made = verifier(key_set(old))
    (tmp_path / "keys").write_text(key_set(old, new))
    assert refused(made, new.token(claims))
    clock.advance(CHECK_SECONDS)
    assert made.verify(new.token(claims)).name == "ann"

    # A file that is bad or gone is reported once, and changes nothing.
    caplog.clear()
    (tmp_path / "keys").write_text(json.dumps({"keys": 7}))
    for _ in range(3):
        clock.advance(CHECK_SECONDS)
        assert made.verify(old.token(claims)).name == "ann"
    (tmp_path / "keys").unlink()
    for _ in range(3):
        clock.advance(CHECK_SECONDS)
        assert made.verify(old.token(claims)).name == "ann"
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert "is not a key set" in said[0]
    assert "No such file" in said[1]
    assert all("the keys read before stay valid" in line for line in said)

    (tmp_path / "keys").write_text(key_set(new))
    (tmp_path / "keys").chmod(0o644)
    clock.advance(-CHECK_SECONDS)  # a clock that was set back does not stop it
    assert refused(made, old.token(claims))


def test_algorithms_that_no_key_could_use_are_refused(verifier, clock):
    with pytest.raises(InvalidArgument, match=r"for auth.jwt_keys_file; add one or more of RS256"):
        verifier(issuer("EdDSA").pem(), algorithms=["HS256"])
    with pytest.raises(InvalidArgument, match=r"for auth.jwt_secret; add one or more of HS256, "):
        TokenVerifier(SECRET, clock, algorithms=["RS256"], audience="")


@pytest.mark.parametrize("program", ["server", "worker", "ctl"])
def test_a_program_that_takes_no_tokens_does_not_load_the_libraries(program):
    code = (
        f"import sys, jobqueue, jobqueue.cli.{program}, jobqueue.server.security as security\n"
        "from jobqueue.config import Settings\n"
        "security.access(Settings())\n"
        "print(sorted({'jwt', 'cryptography'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stderr
