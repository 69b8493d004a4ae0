"""The programs with keys and certificates."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import patience
from tests.access import certificates
from tests.cli import processes

KEY, CLIENT_KEY = "operators-key-0123456789", "clients-key-0123456789"
KEYS = f"ops:client+operator+worker:{KEY},web:client:{CLIENT_KEY}"


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("certificates"))


# -- where it listens --------------------------------------------------------------------------


@pytest.mark.req("inp:PROD")
@pytest.mark.parametrize("face", ["http", "grpc"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "localhost.example"])
def test_the_network_is_refused_while_nobody_has_to_be_known(tmp_path, face, host):
    args = ("--http-port", "0", "--grpc-port", "0", f"--{face}-host", host)
    answer = processes.run("server", *args, cwd=tmp_path)
    assert answer.returncode == 2
    assert f"{face}.host: {host} is open to the network" in answer.stdout
    assert "server.insecure=true" in answer.stdout
    assert list(tmp_path.iterdir()) == []
    checked = processes.run("server", "--dry-run", *args, cwd=tmp_path)
    assert checked.returncode == 1
    assert "is open to the network, and callers need no credentials" in " ".join(
        checked.stdout.split()
    )


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        ({"JQ_SERVER_INSECURE": "true"}, "0.0.0.0 is open to the network without authentication"),
        ({"JQ_AUTH_API_KEYS": KEYS}, "0.0.0.0 is open to the network without TLS"),
    ],
)
def test_it_listens_there_when_told_how(tmp_path, extra, warning):
    hosts = ("--http-host", "0.0.0.0", "--grpc-host", "0.0.0.0", "--db-url", "memory://")
    with processes.server(tmp_path, *hosts, **extra) as server:
        assert server.line(warning)["level"] == "WARNING"
        server.line("ready")
        assert server.stop() == 0


def test_a_loopback_address_is_not_the_network(tmp_path):
    with processes.server(
        tmp_path, "--http-host", "localhost", "--grpc-host", "127.0.0.2", "--db-url", "memory://"
    ) as server:
        server.line("ready")
        assert server.stop() == 0
    assert not [line for line in server.lines if line["level"] == "WARNING"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"JQ_AUTH_API_KEYS": f"ops:poet:{KEY}"}, "auth.api_keys: entry 1: unknown role"),
        ({"JQ_AUTH_API_KEYS_FILE": "nowhere"}, "auth.api_keys_file: nowhere: No such file"),
        ({"JQ_AUTH_JWT_SECRET": "short"}, "auth.jwt_secret: must have 32 or more bytes"),
        ({"JQ_AUTH_JWT_AUDIENCE": "x"}, "auth.jwt_audience: needs auth.jwt_secret or"),
        ({"JQ_AUTH_JWT_ISSUER": "x"}, "auth.jwt_issuer: needs auth.jwt_secret or"),
        ({"JQ_AUTH_JWT_MAX_LIFETIME": "9"}, "auth.jwt_max_lifetime: needs auth.jwt_secret or"),
        ({"JQ_AUTH_JWT_KEYS_FILE": "nowhere"}, "auth.jwt_keys_file: nowhere: No such file"),
        ({"JQ_TLS_CERT": "x.pem"}, "tls.key: is missing"),
        ({"JQ_TLS_CLIENT_CA": "x.pem"}, "tls.client_ca: needs tls.cert and tls.key"),
        ({"JQ_TLS_CLIENT_ROLES": "a:client"}, "tls.client_roles: needs tls.client_ca"),
        ({"JQ_TLS_CERT": "x", "JQ_TLS_KEY": "y"}, "tls.cert: x: No such file"),
    ],
)
def test_a_bad_setting_is_named_before_anything_is_opened(tmp_path, settings, message):
    answer = processes.run("server", cwd=tmp_path, **settings)
    assert answer.returncode == 2
    assert message in answer.stdout
    assert KEY not in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stdout + answer.stderr
    assert list(tmp_path.iterdir()) == []


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.req("inp:PROD")
def test_keys_and_rates_from_the_shell(tmp_path, ctl, monkeypatch):
    rate = ("--set", "limits.submit_rate=0.001", "--set", "limits.submit_burst=2")
    options = ("--worker-concurrency", "0", "--log-level", "debug", *rate)
    with processes.server(tmp_path, *options, JQ_AUTH_API_KEYS=KEYS) as server:
        ready = server.line("ready")
        assert (ready["tls"], ready["authentication"]) == (False, True)
        grpc = ready["grpc"]

        def as_caller(key: str | None, *args: str):
            monkeypatch.delenv("JQ_API_KEY", raising=False)
            if key is not None:
                monkeypatch.setenv("JQ_API_KEY", key)
            return ctl(grpc, *args, "-o", "json")

        nobody = as_caller(None, "status")
        assert (nobody.status, nobody.error["code"]) == (13, "UNAUTHENTICATED")
        wrong = as_caller("wrong-key-0123456789", "job", "submit", "default", "1")
        assert (wrong.status, wrong.error["code"]) == (13, "UNAUTHENTICATED")
        denied = as_caller(CLIENT_KEY, "queue", "create", "mail")
        assert (denied.status, denied.error["code"]) == (3, "PERMISSION_DENIED")
        assert as_caller(KEY, "status").status == 0
        assert as_caller(CLIENT_KEY, "job", "submit", "default", "1", "--count", "2").status == 0
        limited = as_caller(CLIENT_KEY, "job", "submit", "default", "1")
        assert (limited.status, limited.error["code"]) == (14, "RATE_LIMITED")
        assert as_caller(KEY, "job", "submit", "default", "1").status == 0
        refused = processes.run(
            "worker", "--server", grpc, "--metrics-port", "0", cwd=tmp_path, JQ_API_KEY=CLIENT_KEY
        )
        assert refused.returncode == 3
        assert server.stop() == 0
    said = json.dumps(server.lines) + refused.stdout
    assert "is over its rate of" in said
    for secret in (KEY, CLIENT_KEY, "wrong-key-0123456789"):
        assert secret not in said
    assert server.noise == []


HOW = "jq-ctl and jq-worker: environment variable JQ_API_KEY; JobQueue: api_key=..."
SUBMITS = """
from jobqueue import JobQueue

app = JobQueue("grpc://{grpc}")


@app.task
async def greet(name: str) -> None: ...


app.sync().submit(greet, "you")
"""


def test_who_is_not_known_is_told_where_a_key_goes(tmp_path):
    with processes.server(tmp_path, "--db-url", "memory://", JQ_AUTH_API_KEYS=KEYS) as server:
        grpc = server.line("ready")["grpc"]
        worker = ("worker", "--server", grpc, "--metrics-port", "0")
        for command in (("ctl", "--server", grpc, "status"), worker):
            nobody = processes.run(*command, cwd=tmp_path)
            assert nobody.returncode == 13
            assert f"no credential was given; needed: an API key or a token ({HOW}" in (
                nobody.stdout + nobody.stderr
            )
            wrong = processes.run(*command, cwd=tmp_path, JQ_API_KEY="wrong-key-0123456789")
            assert wrong.returncode == 13
            assert f"the credential is not valid ({HOW}" in wrong.stdout + wrong.stderr
        script = subprocess.run(
            [sys.executable, "-c", SUBMITS.format(grpc=grpc)], cwd=tmp_path, timeout=30,
            env=processes.environment(), capture_output=True, text=True,
        )  # fmt: skip
        last = script.stderr.splitlines()[-1]
        assert "no credential was given; needed: an API key" in last
        assert "JobQueue: api_key=..." in last
        assert server.stop() == 0


@pytest.mark.req("jq:FR-045")
def test_a_dry_run_checks_access_and_shows_no_key(tmp_path):
    answer = processes.run(
        "server", "--dry-run", "--http-port", "0", "--grpc-port", "0", cwd=tmp_path,
        JQ_AUTH_API_KEYS=KEYS, JQ_AUTH_JWT_SECRET="s" * 32,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert ["auth.api_keys", "***", "environment", "JQ_AUTH_API_KEYS"] in rows
    assert ["access", "ok", "callers", "must", "be", "known,", "no", "TLS"] in rows
    for secret in (KEY, CLIENT_KEY, "s" * 32):
        assert secret not in answer.stdout + answer.stderr


def test_a_key_is_no_flag(tmp_path):
    for module in ("ctl", "worker"):
        answer = processes.run(module, "--api-key", KEY, cwd=tmp_path)
        assert answer.returncode == 2
    answer = processes.run("server", "--set", f"auth.api_keys={KEYS}", cwd=tmp_path)
    assert answer.returncode == 2
    assert "set the environment variable JQ_AUTH_API_KEYS instead" in answer.stderr


# -- certificates ------------------------------------------------------------------------------


@pytest.mark.req("jq:FR-047", "jq:FR-048", "inp:PROD")
def test_jq_ctl_and_jq_worker_over_mtls(tmp_path, ctl, certs):
    def shown(pair) -> tuple[str, ...]:
        flags = ("--tls-ca", certs.ca, "--tls-cert", pair.cert, "--tls-key", pair.key)
        return tuple(map(str, flags))

    settings = {
        "JQ_TLS_CERT": str(certs.server.cert),
        "JQ_TLS_KEY": str(certs.server.key),
        "JQ_TLS_CLIENT_CA": str(certs.ca),
        "JQ_TLS_CLIENT_ROLES": "alice:client+operator,worker:worker",
    }
    with processes.server(tmp_path, "--worker-concurrency", "0", **settings) as server:
        ready = server.line("ready")
        assert ready["http"].startswith("https://")
        grpc = ready["grpc"]
        assert ctl(grpc, *shown(certs.alice), "status").status == 0
        assert ctl(f"grpcs://{grpc}", *shown(certs.alice), "status").status == 0
        assert ctl(grpc, *shown(certs.worker), "status").status == 3
        quick = ("--timeout", "3")
        assert ctl(grpc, *quick, "status").status in (6, 7)
        assert ctl(grpc, *quick, "--tls-ca", str(certs.ca), "status").status in (6, 7)
        assert ctl(grpc, *quick, *shown(certs.stranger), "status").status in (6, 7)
        beat = ("--set", "worker.heartbeat_interval=0.1", "--metrics-port", "0")
        with processes.Service(
            "worker", "--server", grpc, "--id", "w1", *beat, *shown(certs.worker), cwd=tmp_path
        ) as worker:
            worker.line("ready")
            submit = ("job", "submit", "default", '"hello"', "--type", "echo", "--wait")
            answer = ctl(grpc, *shown(certs.alice), *submit)
            assert answer.status == 0, answer.err
            assert "hello" in answer.out
            before = seen(ctl, grpc, shown(certs.alice))
            limit = patience.Limit(10)  # heartbeats go over a channel of their own
            while seen(ctl, grpc, shown(certs.alice)) <= before:
                assert not limit.over
            assert worker.stop() == 0
        assert not [line for line in worker.lines if "cannot send heartbeats" in line["message"]]
        assert server.stop() == 0
    assert server.noise == worker.noise == []  # failed handshakes are no reason to leave JSON


def seen(ctl, grpc: str, flags: tuple[str, ...]) -> str:
    (found,) = ctl(grpc, *flags, "worker", "list", "-o", "json").json["workers"]
    return found["last_heartbeat"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tls-cert", "x.pem"), "tls: a client certificate needs both cert and key"),
        (("--tls-ca", "nowhere.pem"), "tls.ca: nowhere.pem: No such file"),
    ],
)
def test_flags_that_cannot_be_used_are_named(tmp_path, flags, message):
    for module, command in (("ctl", ("status",)), ("worker", ())):
        answer = processes.run(module, *flags, *command, cwd=tmp_path)
        assert answer.returncode == 2
        assert message in answer.stdout + answer.stderr
