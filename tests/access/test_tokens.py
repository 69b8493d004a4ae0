"""Tokens: only what is signed, in time, and meant for us names a caller."""

from __future__ import annotations

import pytest

from jobqueue.access.callers import Role
from jobqueue.access.tokens import LEEWAY, MAX_TOKEN_BYTES, TokenVerifier
from jobqueue.core.errors import InvalidArgument, Unauthenticated
from tests.access.conftest import AUDIENCE, SECRET
from tests.access.jwt import encode, sign

pytestmark = pytest.mark.req("inp:PROD")


@pytest.fixture
def verifier(clock):
    return TokenVerifier(SECRET, clock, audience=AUDIENCE)


@pytest.fixture
def claims(clock):
    return {
        "sub": "ann",
        "roles": ["client", "poet"],
        "aud": AUDIENCE,
        "exp": clock.now() + 60,
    }


def refusal(verifier, token) -> str:
    with pytest.raises(Unauthenticated) as caught:
        verifier.verify(token)
    return caught.value.message


def test_a_good_token_names_a_caller_and_roles_of_others_are_passed_over(verifier, claims):
    caller = verifier.verify(sign(claims, SECRET))
    assert (caller.name, caller.roles) == ("ann", {Role.CLIENT})


def test_roles_may_be_words(verifier, claims):
    token = sign({**claims, "roles": "worker operator"}, SECRET)
    assert verifier.verify(token).roles == {Role.WORKER, Role.OPERATOR}


def test_a_token_ends_and_begins_by_its_clock(verifier, claims, clock):
    token = sign({**claims, "nbf": clock.now() + LEEWAY + 5}, SECRET)
    assert "not valid yet" in refusal(verifier, token)
    clock.advance(5)
    assert verifier.verify(token).name == "ann"
    clock.advance(55 + LEEWAY)
    assert "expired" in refusal(verifier, token)


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", "RS256", "ES256", "HS384", None, 5])
def test_the_algorithm_is_ours_to_choose(verifier, claims, alg):
    assert "not valid" in refusal(verifier, sign(claims, SECRET, alg=alg))
    unsigned = f"{encode({'alg': alg})}.{encode(claims)}."
    assert "not valid" in refusal(verifier, unsigned)


def test_an_algorithm_signs_with_its_own_hash(clock, claims):
    verifier = TokenVerifier(SECRET, clock, algorithms=["HS256", "HS512"], audience=AUDIENCE)
    assert verifier.verify(sign(claims, SECRET, "HS512", "sha512")).name == "ann"
    assert "not valid" in refusal(verifier, sign(claims, SECRET, "HS512", "sha256"))


def test_a_token_that_was_touched_is_refused(verifier, claims):
    header, body, signature = sign(claims, SECRET).split(".")
    other = encode({**claims, "roles": ["operator"]})
    assert "not valid" in refusal(verifier, f"{header}.{other}.{signature}")
    assert "not valid" in refusal(verifier, f"{header}.{body}.")
    assert "not valid" in refusal(verifier, f"{header}.{body}.{signature[:-4]}")
    assert "not valid" in refusal(verifier, sign(claims, b"x" * 40))


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b", "a.b.c.d", "é.é.é", "!!.!!.!!", "bnVsbA.bnVsbA.bnVsbA", "a" * 9000],
)
def test_nonsense_is_refused(verifier, token):
    assert refusal(verifier, token)


def test_a_token_has_a_size(verifier, claims):
    token = sign({**claims, "x": "x" * MAX_TOKEN_BYTES}, SECRET)
    assert "larger than" in refusal(verifier, token)


def test_a_header_that_must_be_understood_is_refused(verifier, claims):
    assert "not valid" in refusal(verifier, sign(claims, SECRET, crit=["exp"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exp": None}, "exp must be a time"),
        ({"exp": True}, "exp must be a time"),
        ({"exp": "soon"}, "exp must be a time"),
        ({"exp": float("nan")}, "exp must be a time"),
        ({"exp": float("inf")}, "exp must be a time"),
        ({"exp": 10**400}, "exp must be a time"),
        ({"nbf": "now"}, "nbf must be a time"),
        ({"aud": "other.example"}, "another audience"),
        ({"aud": ["x", "y"]}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": 7}, "aud must be"),
        ({"sub": ""}, "sub must be"),
        ({"sub": None}, "sub must be"),
        ({"sub": "x" * 201}, "sub must be"),
        ({"sub": "a\nb"}, "sub must be"),
        ({"roles": {"client": 1}}, "roles must be"),
    ],
)
def test_a_claim_that_is_wrong_is_named(verifier, claims, change, message):
    assert message in refusal(verifier, sign({**claims, **change}, SECRET))


def test_claims_are_an_object(verifier):
    assert "not valid" in refusal(verifier, sign(["sub"], SECRET))


def test_without_an_audience_of_our_own_a_token_for_somebody_is_refused(clock, claims):
    verifier = TokenVerifier(SECRET, clock, audience="")
    assert "another audience" in refusal(verifier, sign(claims, SECRET))
    del claims["aud"]
    assert verifier.verify(sign(claims, SECRET)).name == "ann"


def test_the_issuer_may_be_told(clock, claims):
    verifier = TokenVerifier(SECRET, clock, audience=AUDIENCE, issuer="https://login.example/")
    for other in ("https://login.example", "", None, ["https://login.example/"], 5):
        token = sign({**claims, "iss": other}, SECRET)
        assert "another issuer" in refusal(verifier, token)
    assert "another issuer" in refusal(verifier, sign(claims, SECRET))
    token = sign({**claims, "iss": "https://login.example/"}, SECRET)
    assert verifier.verify(token).name == "ann"


def test_a_token_may_not_live_longer_than_allowed(clock, claims):
    verifier = TokenVerifier(SECRET, clock, audience=AUDIENCE, max_lifetime=60)
    now = clock.now()
    assert "iat must be a time" in refusal(verifier, sign(claims, SECRET))
    assert verifier.verify(sign({**claims, "iat": now}, SECRET)).name == "ann"
    too_long = sign({**claims, "iat": now - 1}, SECRET)
    assert "longer than 60 s" in refusal(verifier, too_long)
    # An issue time that lies ahead would make every lifetime short.
    ahead = {"iat": now + LEEWAY + 1, "exp": now + LEEWAY + 50}
    assert "not valid yet" in refusal(verifier, sign({**claims, **ahead}, SECRET))


def test_the_roles_may_be_in_another_claim(clock, claims):
    verifier = TokenVerifier(SECRET, clock, audience=AUDIENCE, roles_claim="https://x.example/r")
    assert verifier.verify(sign(claims, SECRET)).roles == frozenset()
    token = sign({**claims, "https://x.example/r": ["worker"]}, SECRET)
    assert verifier.verify(token).roles == {Role.WORKER}
    token = sign({**claims, "https://x.example/r": 5}, SECRET)
    assert "https://x.example/r must be a list" in refusal(verifier, token)


def test_clocks_may_be_made_to_agree(clock, claims):
    verifier = TokenVerifier(SECRET, clock, audience=AUDIENCE, leeway=0)
    clock.advance(60)
    assert "expired" in refusal(verifier, sign(claims, SECRET))


def test_weak_settings_are_refused(clock):
    with pytest.raises(InvalidArgument, match=r"auth.jwt_secret: must have 32"):
        TokenVerifier(b"short", clock, audience="")
    with pytest.raises(InvalidArgument, match=r"auth.jwt_algorithms: .*allowed: HS256, HS384"):
        TokenVerifier(SECRET, clock, algorithms=["none"], audience="")
    with pytest.raises(InvalidArgument, match=r"auth.jwt_roles_claim: must be the name"):
        TokenVerifier(SECRET, clock, audience="", roles_claim="")
