"""Define and read the environment variables of each service, as pydantic schemas."""

from __future__ import annotations

import inspect
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationError

from jobqueue.access.tls import Credentials, ServerTls, Tls
from jobqueue.config import ConfigKey
from jobqueue.config_section import Allowed, Section, setting
from jobqueue.core.address import MAX_PORT, Address
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.texts import MAX_WORKER_ID_LENGTH
from jobqueue.taskqueue.components import model
from jobqueue.taskqueue.components.state import MAX_JOBS, MAX_QUEUED, MAX_RESULT_BYTES

MOST_NODES = 1_000
_SHOWN = 60  # characters of a wrong value
_LEVELS = ("debug", "info", "warning", "error", "critical")
_FORMATS = ("json", "text")


def _digits(text: object) -> object:
    if isinstance(text, str) and not (text.isascii() and text.isdigit()):
        raise ValueError
    return text


def _address(text: str) -> str:
    Address.parse(text)
    return text


def _addresses(text: object) -> object:
    found = tuple(_address(one.strip()) for one in str(text).split(","))
    if len(set(found)) != len(found):
        raise ValueError
    return found


def _host(text: str) -> str:
    if ":" in text:
        ipaddress.IPv6Address(text)
    if any(character.isspace() or character in ",/[]" for character in text):
        raise ValueError
    return _printable(text)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError
    return text


def _one_of(words: tuple[str, ...]) -> AfterValidator:
    def check(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text

    return AfterValidator(check)


def _at_most(length: int) -> Allowed:
    return Allowed(f"at most {length} printable characters")


Number = Annotated[int, BeforeValidator(_digits)]
ListeningPort = Annotated[
    int, BeforeValidator(_digits), Allowed(f"a port, 1 to {MAX_PORT}; 0 = any free one")
]
Server = Annotated[str, AfterValidator(_address), Allowed("HOST:PORT, such as job:50052")]
Servers = Annotated[
    tuple[str, ...],
    BeforeValidator(_addresses),
    Allowed("HOST:PORT,HOST:PORT,… in the order that clients use, each once"),
]
BindHost = Annotated[
    str, AfterValidator(_host), Allowed("an address of this machine, such as 0.0.0.0 or 127.0.0.1")
]
Level = Annotated[str, _one_of(_LEVELS), Allowed(f"one of {', '.join(_LEVELS)}")]
Format = Annotated[str, _one_of(_FORMATS), Allowed(f"one of {', '.join(_FORMATS)}")]
_WORD_LENGTH, _FILE_LENGTH = 100, 4_096
WorkerName = Annotated[str, AfterValidator(_printable), _at_most(MAX_WORKER_ID_LENGTH)]
Word = Annotated[str, AfterValidator(_printable), _at_most(_WORD_LENGTH)]
File = Annotated[str, AfterValidator(_printable), _at_most(_FILE_LENGTH)]


def _port(default: int) -> Any:
    return setting(default, "port that it listens on", ge=0, le=MAX_PORT)


def _milliseconds(default: int, about: str) -> Any:
    return setting(default, about, ge=10, le=3_600_000)


def _many(default: int, about: str) -> Any:
    return setting(default, about, ge=1, le=10_000_000)


def _slots(default: int) -> Any:
    return setting(default, "jobs that run at once", ge=1, le=1_000)


def _file(about: str) -> Any:
    return setting("", about, max_length=_FILE_LENGTH)


class SharedVariables(Section):
    """Holds the variables that every service has."""

    log_level: Level = setting("INFO", "lines below this level are left out")
    pythonunbuffered: Word = setting(
        "1", "Python's own; lines of the log are never held back", max_length=_WORD_LENGTH
    )
    log_format: Format = setting("json", "JSON Lines, or text for people")
    shutdown_timeout_ms: Number = setting(
        8000, "after SIGTERM, time for calls and jobs under way", ge=0, le=86_400_000
    )
    tls_cert: File = _file(
        "PEM file: the certificate of this service; its common name is the service's name"
    )
    tls_key: File = _file("PEM file: the key of TLS_CERT")
    tls_ca: File = _file("PEM file: the CA that signs the certificates of all services")

    def client_tls(self) -> Tls | None:
        """Return the TLS settings for calls that this process makes; None for plaintext."""
        return Tls(self.tls_ca, self.tls_cert, self.tls_key) if self.tls_cert else None

    def server_tls(self) -> ServerTls | None:
        """Return the TLS settings for calls that this process receives; None for plaintext."""
        if not self.tls_cert:
            return None
        return ServerTls(Path(self.tls_cert), Path(self.tls_key), Path(self.tls_ca))


class ListeningVariables(SharedVariables):
    """Holds the variables of every service that listens on a port."""

    bind_host: BindHost = setting("0.0.0.0", "address that it listens on")


class OwnersVariables(ListeningVariables):
    """Holds the addresses of the job, queue and result services."""

    job_service_addr: Server = setting(..., "where the job service answers")
    queue_service_addr: Server = setting(..., "where the queue service answers")
    result_service_addr: Server = setting(..., "where the result service answers")


class MaxJobsVariables(ListeningVariables):
    max_jobs: Number = _many(
        MAX_JOBS,
        "jobs that are kept; those that ended first are forgotten first (results: of twice as"
        " many)",
    )


class LedgerVariables(MaxJobsVariables):
    """Holds the variables of a process that keeps the jobs."""

    max_dedup_keys: Number = _many(
        model.MAX_DEDUP_KEYS, "keys of submits that are remembered; the oldest is forgotten first"
    )


class OrderVariables(ListeningVariables):
    """Holds the variables of a process that keeps the order of the waiting jobs."""

    max_queued_jobs: Number = _many(MAX_QUEUED, "jobs that may wait; more are refused")


class ShelfVariables(MaxJobsVariables):
    """Holds the variables of a process that keeps the results."""

    max_output_bytes: Number = setting(
        model.MAX_OUTPUT_BYTES,
        "output that a job may have; with more it is FAILED (OUTPUT_TOO_LARGE)",
        ge=1,
        le=model.MAX_OUTPUT_BYTES,
    )
    max_result_bytes: Number = setting(
        MAX_RESULT_BYTES,
        "outputs that are kept, in all; beyond that the oldest results are forgotten",
        ge=model.MAX_OUTPUT_BYTES,
        le=2**40,
    )


class HeartbeatVariables(SharedVariables):
    heartbeat_interval_ms: Number = _milliseconds(
        model.HEARTBEAT_INTERVAL_MS, "time between two heartbeats of a worker"
    )


class DispatchVariables(HeartbeatVariables):
    """Holds the variables of a process that tracks workers and hands out jobs."""

    worker_timeout_ms: Number = _milliseconds(
        model.WORKER_TIMEOUT_MS, "a worker that is silent for so long gets no more work"
    )
    retry_after_ms: Number = setting(
        model.RETRY_AFTER_MS,
        "delay before an idle worker polls again",
        ge=model.RETRY_AFTER_RANGE_MS[0],
        le=model.RETRY_AFTER_RANGE_MS[1],
    )


class WorkVariables(HeartbeatVariables):
    """Holds the variables of a process that runs jobs."""

    worker_id: WorkerName = setting(
        "", "name of the worker, for as long as it runs", max_length=MAX_WORKER_ID_LENGTH
    )
    worker_slots: Number = _slots(model.TOTAL_WORKER_SLOTS)


class GatewayVariables(OwnersVariables):
    gateway_port: ListeningPort = _port(50051)
    reconcile_interval_ms: Number = _milliseconds(
        model.RECONCILE_INTERVAL_MS, "time between two looks for QUEUED jobs that are in no queue"
    )


class JobVariables(LedgerVariables):
    job_port: ListeningPort = _port(50052)


class QueueVariables(OrderVariables):
    queue_port: ListeningPort = _port(50053)


class CoordinatorVariables(DispatchVariables, OwnersVariables):
    coordinator_port: ListeningPort = _port(50054)


class ResultVariables(ShelfVariables):
    result_port: ListeningPort = _port(50055)


class WorkerVariables(WorkVariables):
    coordinator_addr: Server = setting(..., "where the coordinator answers")


class NodeVariables(
    WorkVariables, DispatchVariables, LedgerVariables, OrderVariables, ShelfVariables
):
    node_port: ListeningPort = _port(50051)
    nodes: Servers = setting(..., "all nodes, the same list for every node and client")
    node_index: Number = setting(
        ..., "place of this node in NODES, from 0", ge=0, le=MOST_NODES - 1
    )
    worker_slots: Number = _slots(1)


# -- the schema, as a list of variables --------------------------------------------------------

# What an empty default means, in words.
_FALLBACKS = {
    "worker_id": "the host name",
    **dict.fromkeys(("tls_cert", "tls_key", "tls_ca"), "plaintext"),
}


@dataclass(frozen=True, slots=True)
class Variable(ConfigKey):
    """Describes one environment variable of a service. An empty value counts as not set."""

    @property
    def name(self) -> str:
        return self.path.upper()

    @property
    def meaning(self) -> str:
        return self.info.description or ""

    @property
    def required(self) -> bool:
        return self.info.is_required()

    @property
    def default(self) -> str | None:
        return None if self.required else str(self.info.default)

    @property
    def fallback(self) -> str:
        """Return in words what an empty default means."""
        return _FALLBACKS.get(self.path, "")


def variables_of(schema: type[Section]) -> tuple[Variable, ...]:
    """Return the variables of a schema: its own first, those that all services have last."""
    names = [name for level in schema.__mro__ for name in inspect.get_annotations(level)]
    ordered = [name for name in dict.fromkeys(names) if name in schema.model_fields]
    return tuple(Variable(name, schema.model_fields[name]) for name in ordered)


S = TypeVar("S", bound=SharedVariables)


def read(schema: type[S], environ: Mapping[str, str]) -> S:
    """Return the settings of a service from environment variables.

    InvalidArgument names every variable that is missing or wrong.
    """
    given = {
        name: text
        for name in schema.model_fields
        if (text := environ.get(name.upper(), "").strip())
    }
    try:
        found = schema.model_validate(given)
    except ValidationError as error:
        bad = {problem["loc"][0] for problem in error.errors()}
        wrong = [one for one in variables_of(schema) if one.path in bad]
        first, *more = [(one.name, _why(one, given.get(one.path))) for one in wrong]
        lines = [first[1], *(f"{name}: {why}" for name, why in more)]
        raise InvalidArgument(first[0], "\n".join(lines)) from None
    _check_together(found)
    return found


def _why(variable: Variable, text: str | None) -> str:
    if text is None:
        return f"is required: {variable.allowed()}"
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{shown!r} is not allowed: {variable.allowed()}"


def texts_of(settings: SharedVariables) -> Iterator[tuple[str, str]]:
    """Yield the name of each variable with its value as text."""
    for variable in variables_of(type(settings)):
        value = getattr(settings, variable.path)
        yield variable.name, ",".join(value) if isinstance(value, tuple) else str(value)


def _check_together(settings: SharedVariables) -> None:
    given = {name: bool(getattr(settings, name)) for name in ("tls_cert", "tls_key", "tls_ca")}
    if any(given.values()) and not all(given.values()):
        missing = next(name for name, there in given.items() if not there)
        raise InvalidArgument(
            missing.upper(), "is missing: set all of TLS_CERT, TLS_KEY and TLS_CA, or none of them"
        )
    if settings.tls_cert:
        _check_files(settings)
    if isinstance(settings, DispatchVariables):
        interval, timeout = settings.heartbeat_interval_ms, settings.worker_timeout_ms
        if timeout <= interval:
            raise InvalidArgument(
                "WORKER_TIMEOUT_MS",
                f"{timeout} is not allowed: must be more than HEARTBEAT_INTERVAL_MS ({interval})",
            )
    if isinstance(settings, NodeVariables) and settings.node_index >= len(settings.nodes):
        raise InvalidArgument(
            "NODE_INDEX",
            f"{settings.node_index} is not allowed: must be 0 to {len(settings.nodes) - 1}, because"
            f" NODES lists {len(settings.nodes)}",
        )


def _check_files(settings: SharedVariables) -> None:
    try:
        Credentials(tls=settings.client_tls()).check()
        if (serving := settings.server_tls()) is not None:
            serving.check()
    except InvalidArgument as error:
        variables = {"tls.ca": "TLS_CA", "tls.client_ca": "TLS_CA", "tls.key": "TLS_KEY"}
        named = variables.get(error.field, "TLS_CERT")
        raise InvalidArgument(named, error.message.removeprefix(f"{error.field}: ")) from None
