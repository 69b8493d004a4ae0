"""A real server with an issuer's keys: what an attacker makes of them opens nothing."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import StatusCode

from jobqueue.access.tokens import TokenVerifier
from jobqueue.core.clock import MonotonicClock
from jobqueue.core.errors import Unauthenticated
from tests import patience
from tests.access.jwt import Issuer, encode, key_set, sign
from tests.cli import processes

SECRET = "a shared secret of thirty-two bytes or more"
ISSUER, AUDIENCE = "https://login.example/", "jobs.example"
HOUR = 3600


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {"sub": "ann", "roles": ["operator"], "iss": ISSUER, "aud": AUDIENCE}
    made |= {"iat": now, "exp": now + HOUR} | changes
    return {name: value for name, value in made.items() if value is not None}


def write(file: Path, text: str) -> None:
    """Replace the file in one step, as tools that rotate keys do."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.rename(file)


def settings(keys: Path, **extra: str) -> dict[str, str]:
    return {
        "JQ_DB_URL": "memory://",
        "JQ_AUTH_JWT_KEYS_FILE": str(keys),
        "JQ_AUTH_JWT_ISSUER": ISSUER,
        "JQ_AUTH_JWT_AUDIENCE": AUDIENCE,
        "JQ_AUTH_JWT_MAX_LIFETIME": str(HOUR),
        **extra,
    }


def status(server: processes.Service, token: str) -> int:
    """What GET /status answers to who shows this token."""
    http = server.line("ready")["http"]
    answer = httpx.get(
        f"{http}/status",
        headers={"Authorization": f"Bearer {token}"},
        timeout=patience.longest(20),
        verify=False,
        trust_env=False,
    )
    return answer.status_code


def called(target: str, token: str) -> tuple[StatusCode, str]:
    """How a gRPC call is answered that shows this token, and what it is told."""
    with grpc.insecure_channel(target) as channel:
        call: Any = channel.unary_unary("/jq.v1.OperatorService/ListQueues")
        try:
            shown = (("authorization", f"Bearer {token}"),)
            _, made = call.with_call(b"", metadata=shown, timeout=patience.longest(20))
        except grpc.RpcError as error:
            made = error
        return made.code(), made.details() or ""


def forgeries(rsa: Issuer, ec: Issuer, ed: Issuer) -> dict[str, str]:
    """Tokens that nobody may accept, by what was tried."""
    good, own = claims(), Issuer("RS256", "rsa")
    header, body, signature = rsa.token(good).split(".")
    unsigned = {alg: f"{encode({'alg': alg})}.{encode(good)}." for alg in ("none", "None", "nOnE")}
    public = {
        "PEM": rsa.pem(),
        "PEM without its end of line": rsa.pem().strip(),
        "JWK": json.dumps(rsa.jwk()).encode(),
        "modulus": rsa.jwk()["n"].encode(),
        "nothing": b"",
    }
    confused = {
        f"HS256 with the public key as the secret: {name}": sign(good, key, kid="rsa")
        for name, key in public.items()
    }
    zeros = f"{encode({'alg': 'ES256', 'kid': 'ec'})}.{encode(good)}.{encode(bytes(64))}"
    return {
        **unsigned,
        **confused,
        "own key": own.token(good),
        "own key in the header": own.token(good, jwk=own.jwk()),
        "own key at an address": own.token(good, jku="https://127.0.0.1:9/keys", kid="own"),
        "own certificate": own.token(good, x5u="https://127.0.0.1:9/x", x5c=["MIIB"]),
        "a file as the key": sign(good, b"", kid="../../../dev/null"),
        "another's kid": rsa.token(good, kid="ec"),
        "unknown kid": rsa.token(good, kid="gone"),
        "kid that is no text": f"{encode({'alg': 'RS256', 'kid': ['rsa']})}.{body}.{signature}",
        "signature of zeros": zeros,
        "no signature": f"{header}.{body}.",
        "another body": f"{header}.{encode(claims(sub='eve'))}.{signature}",
        "crit": rsa.token(good, crit=["exp"], exp=1),
        "b64": rsa.token(good, b64=True, crit=["b64"]),
        "padding": f"{header}.{body}.{signature}==",
        "line feed": f"{header}.{body}.{signature[:9]}%0A{signature[9:]}",
        "deep header": f"{encode(b'[' * 3000)}.{body}.{signature}",
        "not listed: PS256": Issuer("PS256", "rsa").token(good),
        "expired": ed.token(claims(exp=int(time.time()) - 60)),
        "ten years": ec.token(claims(exp=int(time.time()) + 10 * 365 * 86_400)),
        "no issue time": rsa.token(claims(iat=None)),
        "issued tomorrow": rsa.token(claims(iat=int(time.time()) + 86_400, exp=2_000_000_000)),
        "no end": rsa.token(claims(exp=None)),
        "another issuer": rsa.token(claims(iss="https://evil.example/")),
        "no issuer": rsa.token(claims(iss=None)),
        "another audience": ed.token(claims(aud="mail.example")),
        "no audience": ed.token(claims(aud=None)),
    }


@pytest.mark.slow
def test_only_tokens_of_the_issuer_open_a_server(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    rsa, ec, ed = Issuer("RS256", "rsa"), Issuer("ES256", "ec"), Issuer("EdDSA", "ed")
    write(keys, key_set(rsa, ec, ed))
    forged = forgeries(rsa, ec, ed)
    with processes.server(tmp_path, **settings(keys, JQ_AUTH_JWT_SECRET=SECRET)) as server:
        address = server.line("ready")["grpc"]
        good = {issuer.alg: issuer.token(claims()) for issuer in (rsa, ec, ed)}
        good["HS256"] = sign(claims(), SECRET.encode())
        for alg, token in good.items():
            assert (status(server, token), called(address, token)[0]) == (200, StatusCode.OK), alg
        # Together: the answers to many wrong credentials come late.
        with ThreadPoolExecutor(2 * len(forged)) as threads:
            statuses = threads.map(partial(status, server), forged.values())
            answers = threads.map(partial(called, address), forged.values())
            let_in = {how for how, code in zip(forged, statuses, strict=True) if code != 401}
            for (how, token), (code, told) in zip(forged.items(), answers, strict=True):
                if code is not StatusCode.UNAUTHENTICATED:
                    let_in.add(how)
                assert token not in told
        assert let_in == set()
        for token, exit_code in ((good["EdDSA"], 0), (forged["own key in the header"], 13)):
            shown = processes.run(
                "ctl", "--server", address, "status", cwd=tmp_path, JQ_API_KEY=token
            )
            assert shown.returncode == exit_code, shown.stderr
            assert token not in shown.stdout + shown.stderr
        assert server.stop() == 0
    said = json.dumps(server.lines) + "".join(server.noise)
    for token in (*good.values(), *forged.values()):
        assert token.split(".")[1] not in said
    assert server.noise == []


@pytest.mark.slow
def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    old, new = Issuer("ES256", "2025"), Issuer("EdDSA", "2026")
    write(keys, key_set(old))
    with processes.server(tmp_path, **settings(keys)) as server:
        assert [status(server, each.token(claims())) for each in (old, new)] == [200, 401]
        write(keys, key_set(old, new))

        def said(by: Issuer, what: str) -> bool:
            """The issuer's tokens are good, and the log says what became of the file."""
            assert status(server, by.token(claims())) == 200
            return any(what in line["message"] for line in server.lines)

        patience.until(partial(said, old, "read 2 public keys"), "the new key")
        assert [status(server, each.token(claims())) for each in (old, new)] == [200, 200]
        write(keys, key_set(new))
        patience.until(partial(said, new, "read 1 public keys"), "the end of the old one")
        assert status(server, old.token(claims())) == 401

        # What cannot be used changes nothing.
        shared = {"kty": "oct", "k": "c2VjcmV0"}
        bad = {"{": "neither PEM nor", key_set(): "no key", key_set(old, shared): "shared secret"}
        bad[key_set(old.jwk(key_ops=5))] = "its key_ops must be a list"
        for text, reason in bad.items():
            write(keys, text)
            patience.until(partial(said, new, reason), "a warning")
            assert status(server, old.token(claims())) == 401
        keys.unlink()
        os.mkfifo(keys, 0o600)  # nobody writes to it: a read would wait for ever
        patience.until(partial(said, new, "not a regular file"), "a warning")
        assert server.stop() == 0


@pytest.mark.parametrize("form", ["pem", "jwk"])
def test_a_public_key_is_no_secret(form: str, tmp_path: Path) -> None:
    """Everybody has it, so everybody could sign with it."""
    issuer = Issuer("RS256")
    text = issuer.pem().decode() if form == "pem" else json.dumps(issuer.jwk())
    answer = processes.run(
        "server", cwd=tmp_path, JQ_AUTH_JWT_SECRET=text, JQ_HTTP_PORT="0", JQ_GRPC_PORT="0"
    )
    assert answer.returncode == 2
    assert "auth.jwt_secret: is a public key" in answer.stdout
    assert "auth.jwt_keys_file" in answer.stdout


@pytest.mark.parametrize("aud", ["", [], ["", "billing"], {}, 0, None, "billing"])
def test_a_token_for_an_audience_is_refused_where_none_is_configured(aud: Any) -> None:
    verifier = TokenVerifier(SECRET.encode(), MonotonicClock(), audience="")
    made = {"sub": "ann", "exp": 1e12}
    assert verifier.verify(sign(made, SECRET.encode())).name == "ann"
    with pytest.raises(Unauthenticated, match=r"another audience|aud must be"):
        verifier.verify(sign(made | {"aud": aud}, SECRET.encode()))
