"""The services and their variables: the one table behind start-up, ``--help`` and the documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobqueue.access.tls import Credentials, ServerTls, Tls
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.texts import MAX_WORKER_ID_LENGTH
from jobqueue.services import model
from jobqueue.services.job_ledger import MAX_JOBS as JOBS_KEPT
from jobqueue.services.ready_queue import MAX_QUEUED as JOBS_QUEUED
from jobqueue.services.result_shelf import MAX_RESULT_BYTES as RESULTS_KEPT_BYTES
from jobqueue.topology.taskqueue import environment
from jobqueue.topology.taskqueue.environment import (
    ADDRESS,
    ADDRESSES,
    HOST,
    PORT,
    Values,
    Variable,
    choice,
    number,
    text,
)

_MILLISECONDS = number(10, 3_600_000)
_MANY = number(1, 10_000_000)
_FILE = text(4_096)
_SLOTS = number(1, 1_000)
_MOST_NODES = 1_000


def _port(name: str, default: int) -> Variable[int]:
    return Variable(name, PORT, "port that it listens on", str(default))


GATEWAY_PORT = _port("GATEWAY_PORT", 50051)
JOB_PORT = _port("JOB_PORT", 50052)
QUEUE_PORT = _port("QUEUE_PORT", 50053)
COORDINATOR_PORT = _port("COORDINATOR_PORT", 50054)
RESULT_PORT = _port("RESULT_PORT", 50055)
NODE_PORT = _port("NODE_PORT", 50051)

JOB_SERVICE_ADDR = Variable("JOB_SERVICE_ADDR", ADDRESS, "where the job service answers")
QUEUE_SERVICE_ADDR = Variable("QUEUE_SERVICE_ADDR", ADDRESS, "where the queue service answers")
RESULT_SERVICE_ADDR = Variable("RESULT_SERVICE_ADDR", ADDRESS, "where the result service answers")
COORDINATOR_ADDR = Variable("COORDINATOR_ADDR", ADDRESS, "where the coordinator answers")
NODES = Variable("NODES", ADDRESSES, "all nodes, the same list for every node and client")
NODE_INDEX = Variable(
    "NODE_INDEX", number(0, _MOST_NODES - 1), "place of this node in NODES, from 0"
)

MAX_DEDUP_KEYS = Variable(
    "MAX_DEDUP_KEYS",
    _MANY,
    "keys of submits that are remembered; the oldest is forgotten first",
    str(model.MAX_DEDUP_KEYS),
)
MAX_JOBS = Variable(
    "MAX_JOBS",
    _MANY,
    "jobs that are kept; those that ended first are forgotten first (results: of twice as many)",
    str(JOBS_KEPT),
)
MAX_QUEUED_JOBS = Variable(
    "MAX_QUEUED_JOBS", _MANY, "jobs that may wait; more are refused", str(JOBS_QUEUED)
)
MAX_OUTPUT_BYTES = Variable(
    "MAX_OUTPUT_BYTES",
    number(1, model.MAX_OUTPUT_BYTES),
    "output that a job may have; with more it is FAILED (OUTPUT_TOO_LARGE)",
    str(model.MAX_OUTPUT_BYTES),
)
MAX_RESULT_BYTES = Variable(
    "MAX_RESULT_BYTES",
    number(model.MAX_OUTPUT_BYTES, 2**40),
    "outputs that are kept, in all; beyond that the oldest results are forgotten",
    str(RESULTS_KEPT_BYTES),
)
HEARTBEAT_INTERVAL_MS = Variable(
    "HEARTBEAT_INTERVAL_MS",
    _MILLISECONDS,
    "time between two heartbeats of a worker",
    str(model.HEARTBEAT_INTERVAL_MS),
)
WORKER_TIMEOUT_MS = Variable(
    "WORKER_TIMEOUT_MS",
    _MILLISECONDS,
    "a worker that is silent for so long gets no more work",
    str(model.WORKER_TIMEOUT_MS),
)
RETRY_AFTER_MS = Variable(
    "RETRY_AFTER_MS",
    number(*model.RETRY_AFTER_RANGE_MS),
    "when a worker asks again that got nothing",
    str(model.RETRY_AFTER_MS),
)
RECONCILE_INTERVAL_MS = Variable(
    "RECONCILE_INTERVAL_MS",
    _MILLISECONDS,
    "time between two looks for QUEUED jobs that are in no queue",
    str(model.RECONCILE_INTERVAL_MS),
)
WORKER_ID = Variable(
    "WORKER_ID",
    text(MAX_WORKER_ID_LENGTH),
    "name of the worker, for as long as it runs",
    "",
    "the host name",
)
WORKER_SLOTS = Variable(
    "WORKER_SLOTS", _SLOTS, "jobs that run at once", str(model.TOTAL_WORKER_SLOTS)
)
NODE_SLOTS = replace(WORKER_SLOTS, default="1")

LOG_LEVEL = Variable(
    "LOG_LEVEL",
    choice("debug", "info", "warning", "error", "critical"),
    "lines below this level are left out",
    "INFO",
)
LOG_FORMAT = Variable(
    "LOG_FORMAT", choice("json", "text"), "JSON Lines, or text for people", "json"
)
PYTHONUNBUFFERED = Variable(
    "PYTHONUNBUFFERED", text(100), "Python's own; lines of the log are never held back", "1"
)
SHUTDOWN_TIMEOUT_MS = Variable(
    "SHUTDOWN_TIMEOUT_MS",
    number(0, 86_400_000),
    "after SIGTERM, time for calls and jobs under way",
    "8000",
)
BIND_HOST = Variable("BIND_HOST", HOST, "address that it listens on", "0.0.0.0")
TLS_CERT = Variable(
    "TLS_CERT", _FILE, "PEM file: who this service is, by its common name", "", "plaintext"
)
TLS_KEY = Variable("TLS_KEY", _FILE, "PEM file: the key of TLS_CERT", "", "plaintext")
TLS_CA = Variable(
    "TLS_CA", _FILE, "PEM file: who signs the certificates of all services", "", "plaintext"
)

SHARED: tuple[Variable[Any], ...] = (
    LOG_LEVEL,
    PYTHONUNBUFFERED,
    LOG_FORMAT,
    SHUTDOWN_TIMEOUT_MS,
    TLS_CERT,
    TLS_KEY,
    TLS_CA,
)
_OWNERS = (JOB_SERVICE_ADDR, QUEUE_SERVICE_ADDR, RESULT_SERVICE_ADDR)


@dataclass(frozen=True, slots=True)
class HealthTiming:
    """When a container's health is asked for, in seconds, and how often in vain."""

    interval: int
    timeout: int
    retries: int
    start_period: int


HEALTH_TIMING = HealthTiming(interval=5, timeout=2, retries=12, start_period=20)


@dataclass(frozen=True, slots=True)
class Service:
    """One kind of process: what it is, what it serves and where, and what it is told."""

    name: str
    about: str
    variables: tuple[Variable[Any], ...]
    serves: str = ""  # full name of the proto service; empty: it calls, and is not called
    port: Variable[int] | None = None

    @property
    def all_variables(self) -> tuple[Variable[Any], ...]:
        """Its own, and those that all have."""
        return (*self.variables, *SHARED)

    @property
    def healthcheck(self) -> str:
        """The command that asks whether it is well, from beside it."""
        mode, target = "tcp", f"127.0.0.1:${{{self.port.name}}}" if self.port else ""
        if self.port is None:  # it does not listen: whether it can do its work is asked
            mode, target = "worker", f"${{{COORDINATOR_ADDR.name}}}"
        return (
            f"python -m scripts.healthcheck --mode {mode} --target {target} --service {self.name}"
        )

    def read(self, environ: Mapping[str, str]) -> Values:
        """Its variables; InvalidArgument names those that are missing or wrong."""
        values = environment.read(self.all_variables, environ)
        _check_together(self, values)
        return values


_PUBLIC = "taskqueue.v1.TaskQueuePublicService"
_INTERNAL = "taskqueue.internal.v1"

GATEWAY = Service(
    "gateway",
    "What clients call: submit, status, result, cancel, list.",
    (GATEWAY_PORT, *_OWNERS, RECONCILE_INTERVAL_MS, BIND_HOST),
    _PUBLIC,
    GATEWAY_PORT,
)
JOB = Service(
    "job",
    "The owner of the jobs: their status, and the keys of submits. In memory.",
    (JOB_PORT, MAX_DEDUP_KEYS, MAX_JOBS, BIND_HOST),
    f"{_INTERNAL}.JobInternalService",
    JOB_PORT,
)
QUEUE = Service(
    "queue",
    "The owner of which jobs wait, and in which order. In memory.",
    (QUEUE_PORT, MAX_QUEUED_JOBS, BIND_HOST),
    f"{_INTERNAL}.QueueInternalService",
    QUEUE_PORT,
)
COORDINATOR = Service(
    "coordinator",
    "What workers call: it judges who is alive, hands out jobs and ends them.",
    (
        COORDINATOR_PORT,
        *_OWNERS,
        HEARTBEAT_INTERVAL_MS,
        WORKER_TIMEOUT_MS,
        RETRY_AFTER_MS,
        BIND_HOST,
    ),
    f"{_INTERNAL}.CoordinatorInternalService",
    COORDINATOR_PORT,
)
RESULT = Service(
    "result",
    "The owner of the outputs of jobs that ended. In memory.",
    (RESULT_PORT, MAX_OUTPUT_BYTES, MAX_RESULT_BYTES, MAX_JOBS, BIND_HOST),
    f"{_INTERNAL}.ResultInternalService",
    RESULT_PORT,
)
WORKER = Service(
    "worker",
    "Runs jobs that it gets from the coordinator. It calls, and is not called.",
    (COORDINATOR_ADDR, WORKER_ID, HEARTBEAT_INTERVAL_MS, WORKER_SLOTS),
)
NODE = Service(
    "node",
    "All of it in one process: one of several equal nodes, among which clients choose.",
    (
        NODE_PORT,
        NODES,
        NODE_INDEX,
        NODE_SLOTS,
        WORKER_ID,
        HEARTBEAT_INTERVAL_MS,
        WORKER_TIMEOUT_MS,
        RETRY_AFTER_MS,
        MAX_DEDUP_KEYS,
        MAX_JOBS,
        MAX_QUEUED_JOBS,
        MAX_OUTPUT_BYTES,
        MAX_RESULT_BYTES,
        BIND_HOST,
    ),
    _PUBLIC,
    NODE_PORT,
)

DESIGN_A = (GATEWAY, JOB, QUEUE, COORDINATOR, RESULT, WORKER)
SERVICES = {service.name: service for service in (*DESIGN_A, NODE)}


def _check_together(service: Service, values: Values) -> None:
    given = {variable.name: bool(values[variable]) for variable in (TLS_CERT, TLS_KEY, TLS_CA)}
    if any(given.values()) and not all(given.values()):
        missing = next(name for name, there in given.items() if not there)
        raise InvalidArgument(missing, "is missing; TLS_CERT, TLS_KEY and TLS_CA go together")
    if given[TLS_CERT.name]:
        _check_files(values)
    if WORKER_TIMEOUT_MS in service.variables:
        interval, timeout = values[HEARTBEAT_INTERVAL_MS], values[WORKER_TIMEOUT_MS]
        if timeout <= interval:
            raise InvalidArgument(
                WORKER_TIMEOUT_MS.name,
                f"{timeout} is not allowed: more than HEARTBEAT_INTERVAL_MS ({interval})",
            )
    if service is NODE and values[NODE_INDEX] >= len(values[NODES]):
        raise InvalidArgument(
            NODE_INDEX.name,
            f"{values[NODE_INDEX]} is not allowed: NODES names {len(values[NODES])}, from 0 on",
        )


def _check_files(values: Values) -> None:
    try:
        Credentials(tls=client_tls(values)).check()
        if (serving := server_tls(values)) is not None:
            serving.check()
    except InvalidArgument as error:
        variables = {"tls.ca": TLS_CA, "tls.client_ca": TLS_CA, "tls.key": TLS_KEY}
        named = variables.get(error.field, TLS_CERT).name
        raise InvalidArgument(named, error.message.removeprefix(f"{error.field}: ")) from None


def client_tls(values: Values) -> Tls | None:
    """What this process shows when it calls."""
    if not values[TLS_CERT]:
        return None
    return Tls(values[TLS_CA], values[TLS_CERT], values[TLS_KEY])


def server_tls(values: Values) -> ServerTls | None:
    """What this process shows when it is called, and whose certificates it takes."""
    if not values[TLS_CERT]:
        return None
    return ServerTls(Path(values[TLS_CERT]), Path(values[TLS_KEY]), Path(values[TLS_CA]))
