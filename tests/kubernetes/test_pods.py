"""Our programs, started with what the pods of the example are told, and asked what probes ask."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from tests import patience, ports
from tests.cli import processes
from tests.cli.processes import Service
from tests.kubernetes.manifests import DEPLOYMENT, Objects, container, example

KEYS = {name: f"a-key-of-{name}-for-this-test" for name in ("worker", "metrics", "web")}
Secrets = dict[tuple[str, str], str]


def secrets(db_password: str, redis_password: str) -> Secrets:
    """As the docs say to create them."""
    found = re.search(r'--from-literal=api-keys="([^"]+)"', DEPLOYMENT.read_text())
    assert found is not None
    return {
        ("jq-server", "db-password"): db_password,
        ("jq-server", "redis-password"): redis_password,
        ("jq-server", "api-keys"): re.sub(r"\$(\w+)", lambda name: KEYS[name[1]], found[1]),
        ("jq-worker", "api-key"): KEYS["worker"],
    }


def environment(objects: Objects, name: str, known: Secrets, **here: str) -> dict[str, str]:
    """What a container is told, but for the addresses of this machine."""
    only = container(objects, name)
    told = dict(objects["ConfigMap", only["envFrom"][0]["configMapRef"]["name"]]["data"])
    for variable in only["env"]:
        ref = variable["valueFrom"]["secretKeyRef"]
        if (value := known.get((ref["name"], ref["key"]))) is not None:
            told[variable["name"]] = value
        else:
            assert ref["optional"]
    return told | here


def without_password(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port}"
    bare = parts._replace(netloc=f"{parts.username}@{place}" if parts.username else place)
    return urlunsplit(bare), parts.password or ""


def ask(url: str, path: str, key: str = "", **more: str) -> int:
    headers = {**more, **({"Authorization": f"Bearer {key}"} if key else {})}
    with httpx.Client(trust_env=False, verify=False, timeout=patience.longest(20)) as client:
        return client.get(f"{url}{path}", headers=headers).status_code


@pytest.mark.req("jq:NFR-013", "jq:NFR-014", "jq:NFR-015", "jq:NFR-020")
def test_pods_start_answer_their_probes_work_and_stop(
    tmp_path: Path, empty_postgres_dsn: str, redis_url: str
) -> None:
    objects = example()
    db_url, db_password = without_password(empty_postgres_dsn)
    locks_url, redis_password = without_password(redis_url)
    known = secrets(db_password, redis_password)
    http, grpc, metrics = (ports.take() for _ in range(3))
    here = {
        "JQ_DB_URL": db_url,
        "JQ_REDIS_URL": locks_url,
        "JQ_HTTP_HOST": "127.0.0.1",
        "JQ_GRPC_HOST": "127.0.0.1",
        "JQ_HTTP_PORT": str(http),
        "JQ_GRPC_PORT": str(grpc),
    }
    there = {
        "JQ_WORKER_SERVER": f"127.0.0.1:{grpc}",
        "JQ_WORKER_METRICS_HOST": "127.0.0.1",
        "JQ_WORKER_METRICS_PORT": str(metrics),
    }
    job = environment(objects, "jq-migrate", known, **here)
    with Service("server", *container(objects, "jq-migrate")["args"], cwd=tmp_path, **job) as one:
        assert one.wait() == 0, one.text
    server = environment(objects, "jq-server", known, **here)
    worker = environment(objects, "jq-worker", known, **there)
    with (
        Service("server", cwd=tmp_path, **server) as serving,
        Service("worker", cwd=tmp_path, **worker) as working,
    ):
        serving.line("ready")
        working.line("ready")
        assert "applied migration" not in serving.text  # the Job has done it
        probes = container(objects, "jq-server")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = probes[probe]["httpGet"]["path"]
            # A kubelet calls a pod by its address.
            assert ask(f"http://127.0.0.1:{http}", path, Host=f"10.1.2.3:{http}") == 200
        path = container(objects, "jq-worker")["livenessProbe"]["httpGet"]["path"]
        assert ask(f"http://127.0.0.1:{metrics}", path) == 200
        assert ask(f"http://127.0.0.1:{http}", "/metrics", KEYS["metrics"]) == 200
        assert ask(f"http://127.0.0.1:{http}", "/metrics", KEYS["web"]) == 403
        submit = ("job", "submit", "default", '{"n": 1}', "--type", "echo", "--wait")
        called = processes.run(
            *("ctl", "--server", f"127.0.0.1:{grpc}", *submit),
            cwd=tmp_path,
            timeout=60.0,
            JQ_API_KEY=KEYS["web"],
        )
        assert called.returncode == 0, called.stderr + working.text
        for stopping in (serving, working):
            stopping.signal(signal.SIGTERM)
        assert (serving.wait(), working.wait()) == (0, 0), serving.text + working.text
