"""The variables of each service are the document's; missing and wrong values are named."""

from __future__ import annotations

import socket

import pytest

from jobqueue.core.errors import InvalidArgument
from jobqueue.pb import taskqueue_internal_pb2, taskqueue_public_pb2
from jobqueue.taskqueue.components import model
from jobqueue.taskqueue.designs.catalogue import DESIGN_A, SERVICES
from jobqueue.taskqueue.designs.settings import texts_of
from jobqueue.taskqueue.designs.wiring import worker_name
from tests.access.certificates import Authority

OWNERS = {
    "JOB_SERVICE_ADDR": "job:50052",
    "QUEUE_SERVICE_ADDR": "queue:50053",
    "RESULT_SERVICE_ADDR": "result:50055",
}
NODE = {"NODES": "a:1,b:2", "NODE_INDEX": "1"}
ENOUGH = {
    "gateway": OWNERS,
    "job": {},
    "queue": {},
    "coordinator": OWNERS,
    "result": {},
    "worker": {"COORDINATOR_ADDR": "coordinator:50054"},
    "node": NODE,
}
REQUIRED = None
# The lists of the document, section C. All else is optional and ours.
DOCUMENT: dict[str, dict[str, str | None]] = {
    "gateway": {"GATEWAY_PORT": "50051", **dict.fromkeys(OWNERS, REQUIRED)},
    "job": {"JOB_PORT": "50052", "MAX_DEDUP_KEYS": "10000"},
    "queue": {"QUEUE_PORT": "50053"},
    "coordinator": {
        "COORDINATOR_PORT": "50054",
        **dict.fromkeys(OWNERS, REQUIRED),
        "HEARTBEAT_INTERVAL_MS": "1000",
        "WORKER_TIMEOUT_MS": "4000",
    },
    "result": {"RESULT_PORT": "50055", "MAX_OUTPUT_BYTES": "262144"},
    "worker": {"COORDINATOR_ADDR": REQUIRED, "WORKER_ID": "", "HEARTBEAT_INTERVAL_MS": "1000"},
}
SHARED: dict[str, str | None] = {"LOG_LEVEL": "INFO", "PYTHONUNBUFFERED": "1"}
ENDPOINTS = {
    "gateway": ("taskqueue.v1.TaskQueuePublicService", "50051"),
    "job": ("taskqueue.internal.v1.JobInternalService", "50052"),
    "queue": ("taskqueue.internal.v1.QueueInternalService", "50053"),
    "coordinator": ("taskqueue.internal.v1.CoordinatorInternalService", "50054"),
    "result": ("taskqueue.internal.v1.ResultInternalService", "50055"),
    "worker": ("", None),
}


@pytest.mark.req("tq:STARTUP", "tq:LOCK-26")
def test_the_endpoints_are_those_of_the_document() -> None:
    found = {one.name: (one.serves, one.port.default if one.port else None) for one in DESIGN_A}
    assert found == ENDPOINTS
    for service in SERVICES.values():
        if service.port:
            assert service.read(ENOUGH[service.name]).bind_host == "0.0.0.0"


@pytest.mark.req("tq:STARTUP", "tq:LOCK-26")
def test_the_proto_services_exist_under_these_names() -> None:
    files = (taskqueue_public_pb2.DESCRIPTOR, taskqueue_internal_pb2.DESCRIPTOR)
    there = {one.full_name for file in files for one in file.services_by_name.values()}
    assert {service.serves for service in SERVICES.values() if service.serves} == there


@pytest.mark.req("tq:STARTUP", "tq:LOCK-18", "tq:LOCK-25", "tq:LOCK-32")
@pytest.mark.parametrize("name", DOCUMENT)
def test_variables_and_defaults_are_those_of_the_document(name: str) -> None:
    service = SERVICES[name]
    defaults = {one.name: one.default for one in service.all_variables}
    wanted = DOCUMENT[name] | SHARED
    assert {variable: defaults[variable] for variable in wanted} == wanted
    required = {variable for variable, default in wanted.items() if default is REQUIRED}
    assert {one.name for one in service.all_variables if one.required} == required
    values = service.read(ENOUGH[name])  # the required ones are enough
    assert dict(texts_of(values))["LOG_LEVEL"] == "INFO"


@pytest.mark.req("tq:LOCK-32", "tq:LOCK-18", "tq:LOCK-25", "tq:LOCK-13")
@pytest.mark.req("tq:LIVENESS", "tq:RESULT", "tq:DEDUP")
def test_the_values_that_count_are_the_locked_ones() -> None:
    coordinator = SERVICES["coordinator"].read(OWNERS)
    assert coordinator.heartbeat_interval_ms == 1_000
    assert coordinator.worker_timeout_ms == 4_000
    assert coordinator.retry_after_ms == 200
    assert SERVICES["job"].read({}).max_dedup_keys == 10_000
    assert SERVICES["result"].read({}).max_output_bytes == 262_144


@pytest.mark.req("tq:STARTUP")
@pytest.mark.parametrize(
    ("service", "missing"),
    [(name, one.name) for name in SERVICES for one in SERVICES[name].variables if one.required],
)
@pytest.mark.parametrize("empty", [False, True])
def test_a_required_variable_that_is_missing_is_named(
    service: str, missing: str, empty: bool
) -> None:
    environ = {**ENOUGH[service], missing: ""}
    if not empty:
        del environ[missing]
    with pytest.raises(InvalidArgument, match=rf"^{missing}: is required: ") as caught:
        SERVICES[service].read(environ)
    variable = next(one for one in SERVICES[service].variables if one.name == missing)
    assert variable.allowed() in caught.value.message


def test_all_that_is_missing_or_wrong_is_named_at_once() -> None:
    with pytest.raises(InvalidArgument) as caught:
        SERVICES["gateway"].read({"GATEWAY_PORT": "high", "JOB_SERVICE_ADDR": "job:50052"})
    named = [line.split(":")[0] for line in caught.value.message.splitlines()]
    assert named == ["GATEWAY_PORT", "QUEUE_SERVICE_ADDR", "RESULT_SERVICE_ADDR"]


@pytest.mark.req("tq:STARTUP")
@pytest.mark.parametrize(
    ("service", "variable", "text"),
    [
        ("job", "JOB_PORT", "65536"),
        ("job", "JOB_PORT", "-1"),
        ("job", "JOB_PORT", "1e3"),
        ("job", "JOB_PORT", "٣"),
        ("job", "MAX_DEDUP_KEYS", "0"),
        ("job", "MAX_JOBS", "many"),
        ("job", "BIND_HOST", "0.0.0.0:80"),
        ("job", "BIND_HOST", "[::1]"),
        ("job", "LOG_LEVEL", "loud"),
        ("job", "LOG_FORMAT", "xml"),
        ("job", "SHUTDOWN_TIMEOUT_MS", "-1"),
        ("queue", "MAX_QUEUED_JOBS", "1.5"),
        ("result", "MAX_OUTPUT_BYTES", "262145"),
        ("gateway", "JOB_SERVICE_ADDR", "job"),
        ("gateway", "JOB_SERVICE_ADDR", ":50052"),
        ("gateway", "JOB_SERVICE_ADDR", "job:0"),
        ("gateway", "JOB_SERVICE_ADDR", "job:port"),
        ("gateway", "JOB_SERVICE_ADDR", "::1:50052"),
        ("gateway", "JOB_SERVICE_ADDR", "a:1,b:2"),
        ("gateway", "JOB_SERVICE_ADDR", "http://job:50052"),
        ("coordinator", "HEARTBEAT_INTERVAL_MS", "0"),
        ("coordinator", "WORKER_TIMEOUT_MS", "1000"),
        ("coordinator", "RETRY_AFTER_MS", "49"),
        ("coordinator", "RETRY_AFTER_MS", "1001"),
        ("worker", "WORKER_ID", "x" * 256),
        ("worker", "WORKER_ID", "a\tb"),
        ("worker", "WORKER_SLOTS", "0"),
        ("node", "NODES", "a:1,,b:2"),
        ("node", "NODES", "a:1,a:1"),
        ("node", "NODE_INDEX", "2"),
        ("node", "NODE_INDEX", "-1"),
        ("node", "TLS_CERT", "only.pem"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(service: str, variable: str, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SERVICES[service].read({**ENOUGH[service], variable: text})
    named, _, why = caught.value.message.partition(": ")
    assert named == ("TLS_KEY" if variable == "TLS_CERT" else variable)
    assert why


@pytest.mark.parametrize("text", ["[::1]:50052", "job.example.org:1", "127.0.0.1:65535"])
def test_addresses_that_are_allowed(text: str) -> None:
    values = SERVICES["gateway"].read({**OWNERS, "JOB_SERVICE_ADDR": text})
    assert values.job_service_addr == text


@pytest.mark.parametrize("broken", ["TLS_CERT", "TLS_KEY", "TLS_CA"])
def test_a_certificate_that_cannot_be_used_is_named(tmp_path, broken: str) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("job", "IP:127.0.0.1")
    files = {"TLS_CERT": pair.cert, "TLS_KEY": pair.key, "TLS_CA": authority.ca}
    environ = {name: str(file) for name, file in files.items()}
    assert SERVICES["job"].read(environ).tls_ca == str(authority.ca)
    with pytest.raises(InvalidArgument, match=rf"^{broken}: .*nowhere: No such file"):
        SERVICES["job"].read({**environ, broken: str(tmp_path / "nowhere")})


@pytest.mark.req("tq:LOCK-17")
@pytest.mark.parametrize("service", ["worker", "node"])
def test_a_worker_is_named_by_the_variable_or_else_by_its_host(service: str) -> None:
    said = SERVICES[service].read({**ENOUGH[service], "WORKER_ID": "w-7"})
    assert worker_name(said) == "w-7"
    unsaid = SERVICES[service].read(ENOUGH[service])
    assert worker_name(unsaid) == socket.gethostname()


@pytest.mark.req("tq:FAIR", "tq:LOCK-2", "tq:NFR-6")
def test_both_designs_have_six_slots_by_default() -> None:
    one_worker = SERVICES["worker"].read(ENOUGH["worker"]).worker_slots
    each_node = SERVICES["node"].read(NODE).worker_slots
    assert one_worker == 6 * each_node == model.TOTAL_WORKER_SLOTS == 6
