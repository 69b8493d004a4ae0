"""A server that asks who calls: keys, tokens of an issuer, and what its log says of both."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.journeys.machine import Machine

pytestmark = pytest.mark.req("inp:PROD")

WEB, OPS, WRONG = (f"{name}-key-0123456789" for name in ("web", "ops", "wrong"))
KEYS = f"web:client:{WEB},ops:client+operator:{OPS}"
REFUSED = "the credential is not valid"
OVER_THE_SDK = """
import sys

from jobqueue import JobQueue, JobQueueError

app = JobQueue(sys.argv[1], api_key=sys.argv[2])


@app.task
def greet(name: str) -> str:
    return f"hello {name}"


try:
    with app.sync() as q:
        print(q.submit(greet, "ann").id)
except JobQueueError as error:
    sys.exit(f"refused: {error}")
"""
OVER_HTTP = """
import sys
import urllib.error
import urllib.request

asked = urllib.request.Request(
    f"{sys.argv[1]}/jobs",
    data=b'{"payload": "ann"}',
    headers={"Content-Type": "application/json", "Authorization": f"Bearer {sys.argv[2]}"},
)
try:
    print(urllib.request.urlopen(asked).read().decode())
except urllib.error.HTTPError as error:
    sys.exit(f"refused: {error.code} {error.read().decode()}")
"""
ISSUER = """
import json
import sys
import time

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm

ours, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
public = {**json.loads(OKPAlgorithm.to_jwk(ours.public_key())), "kid": "2026", "use": "sig"}
with open("issuer.json", "w") as file:
    json.dump({"keys": [public]}, file)


def token(key, seconds: int) -> str:
    now = int(time.time())
    claims = {"sub": "ann", "roles": ["client"], "aud": "jobs", "iat": now, "exp": now + seconds}
    return jwt.encode(claims, key, "EdDSA", headers={"kid": "2026"})


print(json.dumps({"good": token(ours, 3600), "over": token(ours, -60), "other": token(other, 60)}))
"""


def serve(machine: Machine, *settings: str, **variables: str) -> dict[str, Any]:
    """Start a server; what its first line says."""
    ports = ("--http-port", "0", "--grpc-port", "0", "--db-url", "memory://")
    sets = [word for setting in settings for word in ("--set", setting)]
    server = machine.start("jq-server", *ports, *sets, **variables)
    ready: dict[str, Any] = json.loads(server.line_with("ready"))
    return ready


def test_a_wrong_key_is_refused_in_the_same_words_everywhere(machine: Machine) -> None:
    ready = serve(machine, JQ_AUTH_API_KEYS=KEYS)
    machine.write("sdk.py", OVER_THE_SDK)
    machine.write("over_http.py", OVER_HTTP)
    submit = ("jq-ctl", "--server", ready["grpc"], "job", "submit", "default", '"ann"')
    sdk = ("python", "sdk.py", f"grpc://{ready['grpc']}")
    http = ("python", "over_http.py", ready["http"])
    for refused in (
        machine.run(*sdk, WRONG),
        machine.run(*http, WRONG),
        machine.run(*submit, JQ_API_KEY=WRONG),
    ):
        assert refused.returncode != 0
        assert REFUSED in refused.stderr
        assert "Traceback" not in refused.stderr
        assert WRONG not in refused.stdout + refused.stderr
    assert "no credential was given" in machine.run(*submit).stderr
    for command, key in ((sdk, OPS), (http, WEB)):
        machine.succeed(*command, key)
    machine.succeed(*submit, JQ_API_KEY=WEB)


def test_the_audit_log_says_who_cancelled_a_job(machine: Machine) -> None:
    ready = serve(machine, "log.audit_file=audit.log", JQ_AUTH_API_KEYS=KEYS)
    ctl = ("jq-ctl", "--server", ready["grpc"], "-o", "json")
    told = machine.succeed(*ctl, "job", "submit", "default", "1", "--delay", "3600", JQ_API_KEY=WEB)
    job = json.loads(told)["job_id"]
    machine.succeed(*ctl, "job", "cancel", job, JQ_API_KEY=OPS)
    assert machine.run(*ctl, "queue", "create", "mail", JQ_API_KEY=WEB).returncode != 0
    lines = [json.loads(line) for line in (machine.folder / "audit.log").read_text().splitlines()]
    assert [
        (line["caller"], line["action"], line["object"], line["outcome"]) for line in lines
    ] == [
        ("ops", "job.cancel", job, "OK"),
        ("web", "queue.create", "", "PERMISSION_DENIED"),
    ]
    assert {line["address"] for line in lines} == {"127.0.0.1"}


def test_tokens_of_an_issuer_open_a_server_that_has_its_public_keys(machine: Machine) -> None:
    machine.write("issuer.py", ISSUER)
    tokens = json.loads(machine.succeed("python", "issuer.py"))
    (machine.folder / "issuer.json").chmod(0o644)
    ready = serve(machine, "auth.jwt_keys_file=issuer.json", "auth.jwt_audience=jobs")
    ctl = ("jq-ctl", "--server", ready["grpc"])
    submit = (*ctl, "job", "submit", "default", '"signed"', "--wait")
    machine.succeed(*submit, JQ_API_KEY=tokens["good"])
    for name, said in (("over", "the token has expired"), ("other", REFUSED)):
        refused = machine.run(*submit, JQ_API_KEY=tokens[name])
        assert refused.returncode != 0
        assert said in refused.stderr
    denied = machine.run(*ctl, "queue", "create", "mail", JQ_API_KEY=tokens["good"])
    assert "needs the role operator; 'ann' does not have it" in denied.stderr


def test_files_that_others_could_use_are_refused_with_the_way_out(machine: Machine) -> None:
    keys = machine.write("keys", f"web:client:{WEB}\n")
    keys.chmod(0o644)
    started = ("jq-server", "--http-port", "0", "--grpc-port", "0", "--db-url", "memory://")
    open_to_all = machine.run(*started, "--dry-run", "--set", "auth.api_keys_file=keys")
    assert open_to_all.returncode == 1
    assert "others may read or change it (mode 644); run chmod 600 keys" in open_to_all.stdout
    keys.chmod(0o600)
    machine.succeed(*started, "--dry-run", "--set", "auth.api_keys_file=keys")
    machine.write("server.yaml", f"db:\n  password: *{WRONG}\n")
    unquoted = machine.run(*started, "--config", "server.yaml")
    assert unquoted.returncode == 2
    assert "server.yaml:2:13: not valid YAML at this line and column" in unquoted.stderr
    assert WRONG not in unquoted.stdout + unquoted.stderr
