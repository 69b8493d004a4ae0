"""deploy/kubernetes: what kustomize builds is valid, fits together, and fits our programs."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from jobqueue import config
from jobqueue.config import Settings
from jobqueue.connect.urls import check_redis_url, parse_url
from tests.kubernetes.manifests import (
    DEPLOYMENT,
    KUBERNETES,
    ROOT,
    WORKLOADS,
    Object,
    Objects,
    built_text,
    by_name,
    container,
    pod_specs,
)
from tests.kubernetes.trim_schemas import SCHEMAS
from tests.monitoring.files import DOCS as MONITORING
from tests.monitoring.files import PROMETHEUS, SCRAPES

IMAGE_USER = 10001  # as the Dockerfile says


@pytest.fixture(params=["example", "aws"])
def built(request: pytest.FixtureRequest) -> Objects:
    return by_name(yaml.safe_load_all(built_text(request.param)))


@pytest.fixture(params=["base", "example", "aws"])
def objects(request: pytest.FixtureRequest) -> Objects:
    """The base is readable without a tool."""
    if request.param != "base":
        return by_name(yaml.safe_load_all(built_text(request.param)))
    base = KUBERNETES / "base"
    names = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    texts = [(base / name).read_text() for name in names]
    return by_name(one for text in texts for one in yaml.safe_load_all(text))


def errors_of(document: Object) -> list[str]:
    schemas = json.loads(SCHEMAS.read_text())
    kind = f"{document['apiVersion']} {document['kind']}"
    schema = {**schemas["kinds"][kind], "$defs": schemas["$defs"]}
    found = jsonschema_rs.validator_for(schema).iter_errors(document)
    return [f"{kind} {list(error.instance_path)}: {error.message}" for error in found]


# -- against the published schemas -------------------------------------------------------------


def test_every_object_fits_the_published_schemas(objects: Objects) -> None:
    assert [error for one in objects.values() for error in errors_of(one)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replica"), 2),
        (("spec", "replicas"), "two"),
        (("spec", "template", "spec", "containers", 0, "livenessProbe", "period"), 5),
    ],
)
def test_a_mistake_is_found(path: tuple[Any, ...], value: Any) -> None:
    text = (KUBERNETES / "base/server.yaml").read_text()
    deployment = by_name(yaml.safe_load_all(text))["StatefulSet", "jq-server"]
    assert errors_of(deployment) == []
    place: Any = deployment
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert errors_of(deployment)


# -- what is promised --------------------------------------------------------------------------


@pytest.mark.req("jq:NFR-013")
def test_probes_ask_what_they_should(objects: Objects) -> None:
    server, worker = container(objects, "jq-server"), container(objects, "jq-worker")
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    asked = [
        (server[probe]["httpGet"]["path"], server[probe]["httpGet"]["port"]) for probe in probes
    ]
    assert asked == [("/healthz", "http"), ("/healthz", "http"), ("/readyz", "http")]
    for probe in probes[:2]:
        assert worker[probe]["httpGet"]["path"] == "/healthz"
        assert worker[probe]["httpGet"]["port"] == "metrics"
    settings = Settings()
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > settings.db.start_timeout
    assert {port["name"]: port["containerPort"] for port in server["ports"]} == {
        "grpc": settings.grpc.port,
        "http": settings.http.port,
    }
    assert [port["containerPort"] for port in worker["ports"]] == [settings.worker.metrics_port]


@pytest.mark.req("jq:NFR-014", "jq:NFR-015")
def test_pods_are_given_the_time_to_stop(objects: Objects) -> None:
    pods, settings = pod_specs(objects), Settings()
    (before,) = re.findall(
        r"sleep\((\d+)\)",
        container(objects, "jq-server")["lifecycle"]["preStop"]["exec"]["command"][-1],
    )
    needed = int(before) + settings.server.shutdown_timeout
    assert pods["jq-server"]["terminationGracePeriodSeconds"] > needed
    needed = settings.worker.shutdown_timeout
    assert pods["jq-worker"]["terminationGracePeriodSeconds"] > needed


def test_nothing_runs_as_root_or_may_become_it(objects: Objects) -> None:
    for name, pod in pod_specs(objects).items():
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == IMAGE_USER
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert container(objects, name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container(objects, name)["resources"]["limits"]["memory"]


@pytest.mark.req("jq:NFR-020")
def test_migrations_run_as_a_job(objects: Objects) -> None:
    job, server = container(objects, "jq-migrate"), container(objects, "jq-server")
    assert job["args"] == ["--migrate"]
    assert (job["image"], job["envFrom"]) == (server["image"], server["envFrom"])


def test_a_roll_out_and_a_drained_node_leave_servers(objects: Objects) -> None:
    spec = objects["StatefulSet", "jq-server"]["spec"]
    assert spec["replicas"] >= 2
    assert "updateStrategy" not in spec  # one after the other, as ever
    assert objects["PodDisruptionBudget", "jq-server"]["spec"]["minAvailable"] == 1
    assert "maxUnavailable" in objects["PodDisruptionBudget", "jq-worker"]["spec"]


# -- what must fit together --------------------------------------------------------------------


def selectors(document: Object) -> Iterator[dict[str, str]]:
    """The pods that an object means, by their labels."""
    spec = document["spec"]
    match document["kind"]:
        case "Service":
            yield spec["selector"]
        case "Deployment" | "StatefulSet" | "PodDisruptionBudget":
            yield spec["selector"]["matchLabels"]
        case "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]


def test_selectors_find_pods_and_ports_have_their_names(objects: Objects) -> None:
    pods = {
        name: objects[kind, name]["spec"]["template"]["metadata"]["labels"]
        for kind, name in objects
        if kind in WORKLOADS
    }
    for (kind, name), document in objects.items():
        for labels in selectors(document) if "spec" in document else ():
            meant = [pod for pod, own in pods.items() if labels.items() <= own.items()]
            assert meant == ["jq-server" if name == "jq-servers" else name], kind
    for name in ("jq-server", "jq-worker"):
        ports = {port["name"] for port in container(objects, name)["ports"]}
        service = objects["Service", name]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
        policy = objects["NetworkPolicy", name]["spec"]
        let_in = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        assert let_in == ports


def referred(objects: Objects) -> set[tuple[str, str]]:
    """Secrets and their keys."""
    found = set()

    def look(node: Any) -> None:
        if isinstance(node, dict):
            if "secretKeyRef" in node:
                found.add((node["secretKeyRef"]["name"], node["secretKeyRef"]["key"]))
            if "credentials" in node:
                found.add((node["credentials"]["name"], node["credentials"]["key"]))
            for value in node.values():
                look(value)
        elif isinstance(node, list):
            for one in node:
                look(one)

    look(list(objects.values()))
    return found


def test_secrets_are_named_and_never_written(objects: Objects) -> None:
    assert not [kind for kind, _ in objects if kind == "Secret"]
    secret = {key.env for key in config.keys().values() if key.secret} | {"JQ_API_KEY"}
    for name in pod_specs(objects):
        for variable in container(objects, name)["env"]:
            assert ("secretKeyRef" in variable["valueFrom"]) is (variable["name"] in secret)
    told = DEPLOYMENT.read_text()
    for name, key in referred(objects):
        command = re.search(rf"create secret generic {name} (.*?[^\\])\n", told, re.DOTALL)
        assert command is not None, name
        assert f"--from-literal={key}=" in command[1], (name, key)


def test_settings_are_those_of_our_programs(built: Objects) -> None:
    maps = {name: one["data"] for (kind, name), one in built.items() if kind == "ConfigMap"}
    for name in ("jq-server", "jq-worker"):
        used = container(built, name)["envFrom"][0]["configMapRef"]["name"]
        environ = maps[used]
        secret = {key.env for key in config.keys().values() if key.secret}
        assert not secret & set(environ)
        loaded = config.load(None, environ, {})
        assert loaded.warnings == []
    server = config.load(
        None, maps[container(built, "jq-server")["envFrom"][0]["configMapRef"]["name"]], {}
    )
    assert parse_url(server.settings.db.url).scheme == "postgresql"
    check_redis_url(server.settings.redis.url)
    assert (server.settings.http.host, server.settings.grpc.host) == ("0.0.0.0", "0.0.0.0")


def test_workers_know_every_server_by_its_name(built: Objects) -> None:
    """So that they go on at another one while theirs is exchanged."""
    spec = built["StatefulSet", "jq-server"]["spec"]
    assert built["Service", spec["serviceName"]]["spec"]["clusterIP"] == "None"
    used = container(built, "jq-worker")["envFrom"][0]["configMapRef"]["name"]
    server = built["ConfigMap", used]["data"]["JQ_WORKER_SERVER"]
    told = parse_url(server if "://" in server else f"grpc://{server}")
    names = [f"jq-server-{number}.{spec['serviceName']}" for number in range(spec["replicas"])]
    assert [".".join(host.split(".")[:2]) for host, _ in told.servers] == names
    assert {port for _, port in told.servers} == {Settings().grpc.port}


def test_volumes_name_what_is_there(built: Objects) -> None:
    maps = {name for kind, name in built if kind == "ConfigMap"}
    for name, pod in pod_specs(built).items():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in container(built, name)["volumeMounts"]:
            volume = volumes.pop(mount["name"])
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            if "secret" in volume:  # others may not read a key
                assert volume["secret"]["defaultMode"] == 0o440
                assert pod["securityContext"]["fsGroup"] == IMAGE_USER
        assert volumes == {}


# -- monitoring and scaling --------------------------------------------------------------------


def test_prometheus_gets_the_job_names_that_alerts_look_for() -> None:
    aws = by_name(yaml.safe_load_all(built_text("aws")))
    jobs = set()
    for (kind, name), one in aws.items():
        if kind == "ServiceMonitor":
            wanted = one["spec"]["selector"]["matchLabels"].items()
            (service,) = (
                other
                for (kind, _), other in aws.items()
                if kind == "Service" and wanted <= other["metadata"]["labels"].items()
            )
            assert service is aws["Service", name]
            jobs.add(service["metadata"]["labels"][one["spec"]["jobLabel"]])
            (endpoint,) = one["spec"]["endpoints"]
            assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert jobs == {scrape["job_name"] for scrape in SCRAPES["scrape_configs"]}
    server = aws["ServiceMonitor", "jq-server"]["spec"]["endpoints"][0]
    assert (server["scheme"], server["tlsConfig"]["serverName"]) == ("https", "jq-server")


def test_the_alerts_become_a_rule_of_the_operator(tmp_path: Path) -> None:
    """By the command in the docs."""
    block = re.search(
        r"```text\n(\(printf '.*?)\| kubectl apply", DEPLOYMENT.read_text(), re.DOTALL
    )
    assert block is not None
    done = subprocess.run(
        ["sh", "-c", block[1]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rule = yaml.safe_load(done.stdout)
    assert errors_of(rule) == []
    assert rule["spec"] == yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())


def test_workers_are_scaled_by_a_metric_that_the_adapter_has() -> None:
    aws = by_name(yaml.safe_load_all(built_text("aws")))
    scaler = aws["HorizontalPodAutoscaler", "jq-worker"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "jq-worker"
    assert "replicas" not in aws["Deployment", "jq-worker"]["spec"]  # it would set them back
    (metric,) = scaler["metrics"]
    values = yaml.safe_load((KUBERNETES / "components/autoscaling/adapter-values.yaml").read_text())
    (rule,) = values["rules"]["external"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    assert "| `jq_job_queue_depth` |" in MONITORING
    assert int(metric["external"]["target"]["averageValue"]) == 2 * Settings().worker.concurrency
