"""The settings: one tree, its defaults, units and bounds, and where values come from.

Rising precedence: defaults, the profile, the YAML file, ``JQ_`` environment variables, flags.
Environment names come from the schema (``queue.max_retries`` is ``JQ_QUEUE_MAX_RETRIES``).
Whoever starts a program calls ``load`` once and passes the result down; nothing else reads the
environment. ``docs/configuration.md`` is generated from here.
"""

from __future__ import annotations

import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SecretStr, StringConstraints, ValidationError
from pydantic.fields import FieldInfo

from jobqueue.config_environ import PREFIX, unknown_variables
from jobqueue.config_file import ConfigError, read_file
from jobqueue.config_section import Host, Hosts, Int, Names, Seconds, Section, secret_file, setting
from jobqueue.config_security import (
    AuthSection,
    LimitsSection,
    TlsSection,
    hashed_only,
    plain_keys_in_file,
)
from jobqueue.core.clock import MAX_SECONDS
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.retry import check_retry
from jobqueue.redaction import MASK, holds_secret, redact_value

_MAX_PORT = 65535
_DAY = 86_400.0
Topic = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$", max_length=249)]


# -- the schema --------------------------------------------------------------------------------


class DbSettings(Section):
    url: str = setting(
        "sqlite:///data/jobqueue.db",
        "Where jobs are kept: `memory://` (not durable), `sqlite:///FILE` (relative to the current"
        " folder), `sqlite:////PATH/FILE` (absolute), `postgresql://USER@HOST:PORT/DATABASE`"
        " (several servers may share it; more hosts, separated by commas, are tried in order),"
        " `redis://HOST:PORT/NUMBER` or `rediss://` (shared, too; as durable as that Redis is set"
        " up to be; `?prefix=NAME` keeps several apart in one database).",
        min_length=1,
    )
    password: SecretStr = setting(
        SecretStr(""),
        "Password of PostgreSQL, or of a Redis that keeps jobs, in place of one in the URL.",
    )
    password_file: str = secret_file("db.password")
    start_timeout: Seconds = setting(
        60.0,
        "How long a starting jq-server or jq-worker waits for PostgreSQL, or for a Redis that keeps"
        " jobs; 0 = it ends when that cannot be reached.",
        "s",
        ge=0,
        le=_DAY,
    )
    pool_size: Int = setting(
        8, "Connections to PostgreSQL for statements.", "connections", ge=1, le=100
    )


class RedisSettings(Section):
    url: str = setting(
        "",
        "Redis that keeps several servers on PostgreSQL out of each other's way:"
        " `redis://HOST:PORT/NUMBER`, `rediss://` (TLS); none = PostgreSQL's row locks alone.",
    )
    password: SecretStr = setting(SecretStr(""), "Password of Redis, in place of one in the URL.")
    password_file: str = secret_file("redis.password")
    timeout: Seconds = setting(
        0.05, "Longest wait for Redis; then dispatch goes on without it.", "s", gt=0, le=60
    )


class KafkaSettings(Section):
    bootstrap: str = setting(
        "",
        "Kafka that every transition is published to, as HOST:PORT, several with commas between;"
        " none = no event stream.",
    )
    topic_jobs: Topic = setting("jq.job-events", "Topic of everything that happens to jobs.")
    topic_dead_letters: Topic = setting(
        "job.dead-lettered", "Topic that dead letters are published to as well."
    )
    topic_queues: Topic = setting("jq.queue-events", "Topic of changes of queues.")
    dispatch: bool = setting(
        False,
        "Workers hear of their jobs by Kafka, from whichever jq-server leads, instead of connecting"
        " to one: the streaming topology. Needs a store in Redis.",
    )
    topic_requests: Topic = setting("job-requests", "Dispatch: topic of jobs to be assigned.")
    topic_assignments: Topic = setting(
        "job-assignments", "Dispatch: topic of assignments, with a partition for each worker."
    )
    topic_results: Topic = setting("job-results", "Dispatch: topic of what became of attempts.")
    topic_workers: Topic = setting("worker-events", "Dispatch: topic of workers that come or die.")
    assignment_partitions: Int = setting(
        64,
        "Dispatch: partitions of the assignments; with more workers than that some share one.",
        "partitions",
        ge=1,
        le=10_000,
    )
    resend_after: Seconds = setting(
        5.0,
        "Dispatch: an assignment that was not started for so long is told again.",
        "s",
        gt=0,
        le=_DAY,
    )
    partitions: Int = setting(
        6, "Partitions of a topic that jq-server creates.", "partitions", ge=1, le=1_000
    )
    replication: Int = setting(
        0,
        "Copies of a topic that jq-server creates; 0 = as Kafka is set up.",
        "copies",
        ge=0,
        le=100,
    )
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = setting(
        "plaintext", "How connections to Kafka are protected."
    )
    sasl_mechanism: Literal["plain", "scram-sha-256", "scram-sha-512"] = setting(
        "scram-sha-512", "How jq-server logs in, with `sasl_plaintext` and `sasl_ssl`."
    )
    username: str = setting("", "Name that jq-server logs in to Kafka by.")
    password: SecretStr = setting(SecretStr(""), "Password of Kafka.")
    password_file: str = secret_file("kafka.password")
    tls_ca: str = setting(
        "", "File with the authorities that vouch for Kafka; none = the system's."
    )
    abandon: bool = setting(
        False,
        "Give up an event stream that was published before, where no Kafka is named any more: jobs"
        " are not kept for it any longer.",
    )


class HttpSettings(Section):
    enabled: bool = setting(True, "Serve the HTTP API, /metrics, /healthz and /readyz.")
    host: str = setting("127.0.0.1", "Address that HTTP listens on.", min_length=1)
    port: Int = setting(8080, "Port of HTTP; 0 takes a free one.", ge=0, le=_MAX_PORT)
    max_connections: Int = setting(
        3072,
        "Connections at a time; fewer where the process may open fewer files. At most a third of"
        " them are calls under way, a sixth waits, a sixth streams; one caller has half of each.",
        "connections",
        ge=12,
        le=1_000_000,
    )
    max_connections_per_address: Int = setting(
        2048,
        "The same from one address; as many as `http.max_connections` where a proxy is the only one"
        " that connects.",
        "connections",
        ge=1,
        le=1_000_000,
    )
    allowed_hosts: Hosts = setting(
        [],
        "Names that HTTP is called by, as they stand in `Host`, beside `localhost` and `http.host`;"
        " `*` = any. None given, a server on which callers have to say who they are takes any.",
    )
    view: Literal["canonical", "scheduler", "producer"] = setting(
        "canonical", "Vocabulary of job states in HTTP answers, unless a request asks for another."
    )


class GrpcSettings(Section):
    enabled: bool = setting(True, "Serve the gRPC API, which remote workers and clients use.")
    host: str = setting("127.0.0.1", "Address that gRPC listens on.", min_length=1)
    port: Int = setting(50051, "Port of gRPC; 0 takes a free one.", ge=0, le=_MAX_PORT)
    reflection: bool = setting(False, "Let tools such as grpcurl ask for the schema.")


class WorkerSection(Section):
    concurrency: Int = setting(
        4,
        "Jobs run at once by jq-server's built-in pool (0 = no pool) or a jq-worker (at least 1)."
        " On PostgreSQL a jq-server has a pool only where this is set or an app is named.",
        "jobs",
        ge=0,
        le=10_000,
    )
    queues: Names = setting(
        ["default"],
        "Queues that jobs are taken from; `*` = all. Unless it is set: those of the app's tasks, or"
        " `default`, and the jobs of taskqueue.v1. One that does not exist is told in the log, and"
        " taken up when it is created.",
    )
    id: str = setting(
        "", "Name of a jq-worker; by default host name and process id.", max_length=200
    )
    server: str = setting(
        "127.0.0.1:50051",
        "The jq-server that a jq-worker connects to, as HOST:PORT; several with commas between.",
        min_length=1,
    )
    app: str = setting("", "Python application with the task handlers, as MODULE:ATTRIBUTE.")
    heartbeat_interval: Seconds = setting(5.0, "Time between heartbeats.", "s", gt=0, le=3600)
    heartbeat_timeout: Seconds = setting(
        30.0,
        "Silence after which a worker is OFFLINE and its jobs fail over.",
        "s",
        gt=0,
        le=_DAY,
    )
    shutdown_timeout: Seconds = setting(
        60.0, "Time a stopping jq-worker gives to the jobs it runs.", "s", ge=0, le=_DAY
    )
    metrics_host: str = setting("127.0.0.1", "Address of jq-worker's /metrics.", min_length=1)
    metrics_port: Int = setting(9464, "Port of jq-worker's /metrics; 0 = none.", ge=0, le=_MAX_PORT)


class QueueSection(Section):
    capacity: Int = setting(
        0, "PENDING jobs a queue takes before it refuses more; 0 = unbounded.", "jobs", ge=0
    )
    max_retries: Int = setting(3, "Retries of a failed job.", "retries", ge=0, le=1_000)
    max_payload_bytes: Int = setting(
        1 << 20, "Largest payload accepted.", "bytes", ge=1, le=64 << 20
    )
    retry_profile: Literal["default", "producer", "scheduler"] = setting(
        "default",
        "Wait before a retry: `default` 5, 10, 20 … 300 s and up to 25 % more; `producer` 1, 2, 4,"
        " 8, 10 s ± 25 %; `scheduler` 1, 2, 4, 8 s.",
    )
    retry_base: Seconds | None = setting(
        None,
        "First wait before a retry; each further one is twice as long; none = the profile's.",
        "s",
        gt=0,
        le=MAX_SECONDS,
    )
    retry_max: Seconds | None = setting(
        None,
        "Longest wait before a retry, jitter included; none = the profile's.",
        "s",
        gt=0,
        le=MAX_SECONDS,
    )
    retry_jitter: Seconds | None = setting(
        None,
        "Share of a wait that is random, so that jobs that failed together do not return"
        " together: 0.25 = up to 25 %; none = the profile's.",
        ge=0,
        le=1,
    )
    ttl: Seconds | None = setting(
        None, "A job that has not started within this time is dead-lettered.", "s", gt=0
    )
    timeout: Seconds | None = setting(None, "Longest run of one attempt.", "s", gt=0)
    key_ttl: Seconds = setting(_DAY, "Time an idempotency key is remembered.", "s", gt=0)
    poison_after: Int = setting(
        3,
        "Worker deaths under a job that make it a dead letter (POISON), the last one while it ran;"
        " 0 = never, and no job runs apart.",
        "deaths",
        ge=0,
    )
    retention: Seconds = setting(
        7 * _DAY,
        "Time DONE jobs are kept, in queues that do not say it themselves; 0 = for ever.",
        "s",
        ge=0,
        le=MAX_SECONDS,
    )
    dead_letter_retention: Seconds = setting(
        0.0,
        "Time dead letters are kept, in queues that do not say it themselves; 0 = until they are"
        " deleted.",
        "s",
        ge=0,
        le=MAX_SECONDS,
    )


class SchedulerSection(Section):
    batch_size: Int = setting(100, "Jobs handed out in one cycle.", "jobs", ge=1, le=10_000)
    interval: Seconds = setting(0.5, "Longest idle wait between two cycles.", "s", gt=0, le=60)
    assignment_timeout: Seconds = setting(
        60.0, "Time a worker has to start a job it was handed.", "s", gt=0, le=_DAY
    )
    leader_ttl: Seconds = setting(
        10.0,
        "Of several jq-servers on one store one judges workers and removes old jobs; another"
        " takes over when that one was silent for so long.",
        "s",
        gt=0,
        le=3600,
    )


class CronSection(Section):
    catch_up: Seconds | None = setting(
        None,
        "How late the tick of a periodic task may still be submitted, after a stop or an outage;"
        " 0 = such ticks are skipped; nothing = what the app says, 3600 unless it says otherwise."
        " Never more than `queue.key_ttl`.",
        "s",
        ge=0,
        le=_DAY,
    )


class ServerSection(Section):
    role: Literal["all", "api", "scheduler"] = setting(
        "all",
        "With `kafka.dispatch`, what this process does: `api` answers HTTP and gRPC, `scheduler`"
        " stands for the lead, assigns and publishes, `all` does both.",
    )
    shutdown_timeout: Seconds = setting(
        30.0,
        "Time a stopping jq-server gives to requests, jobs and workers that drain.",
        "s",
        ge=0,
        le=_DAY,
    )
    insecure: bool = setting(
        False, "Listen on the network although nobody has to say who they are."
    )


class LogSection(Section):
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Least severe messages that are logged."
    )
    format: Literal["auto", "json", "text"] = setting(
        "auto",
        "JSON lines, or text for people; `auto`: text where stdout is a terminal, JSON elsewhere.",
    )
    audit_file: str = setting(
        "",
        "File that the server's audit log is appended to, as JSON lines; empty = it is in the log.",
    )


class Settings(Section):
    """Everything that can be set."""

    profile: Literal["default", "producer", "streaming"] = setting(
        "default",
        "A set of defaults: `producer` bounds queues at 100 jobs, retries after 1 to 10 s, runs 5"
        " jobs at once and answers HTTP in the producer vocabulary; `streaming` dispatches by"
        " Kafka, retries after 1, 2, 4 and 8 s and answers HTTP in the scheduler vocabulary.",
    )
    db: DbSettings = Field(default_factory=DbSettings)
    redis: RedisSettings = Field(default_factory=RedisSettings)
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    grpc: GrpcSettings = Field(default_factory=GrpcSettings)
    worker: WorkerSection = Field(default_factory=WorkerSection)
    queue: QueueSection = Field(default_factory=QueueSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    cron: CronSection = Field(default_factory=CronSection)
    server: ServerSection = Field(default_factory=ServerSection)
    auth: AuthSection = Field(default_factory=AuthSection)
    tls: TlsSection = Field(default_factory=TlsSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    log: LogSection = Field(default_factory=LogSection)


PROFILES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "producer": {
        "queue.capacity": 100,
        "queue.retry_profile": "producer",
        "http.view": "producer",
        "worker.concurrency": 5,
    },
    "streaming": {
        "kafka.dispatch": True,
        "queue.retry_profile": "scheduler",
        "http.view": "scheduler",
        "worker.heartbeat_interval": 5.0,
        "worker.heartbeat_timeout": 30.0,
    },
}


# -- the schema, as a list of keys -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One setting by its full name."""

    path: str
    info: FieldInfo

    @property
    def env(self) -> str:
        """Its environment variable."""
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """Its flag, where a program has one."""
        return "--" + self.path.replace(".", "-").replace("_", "-")

    @property
    def secret(self) -> bool:
        """Whether its value must not be seen."""
        return self.info.annotation is SecretStr

    @property
    def default(self) -> Any:
        """What holds when nobody says otherwise."""
        return self.info.get_default(call_default_factory=True)

    @property
    def unit(self) -> str:
        """What a number counts."""
        extra = self.info.json_schema_extra
        return str(extra.get("unit", "")) if isinstance(extra, dict) else ""

    @property
    def metavar(self) -> str:
        """What stands for a value in help."""
        kinds = _kinds(self.info.annotation)
        for kind in kinds:
            if typing.get_origin(kind) is Literal:
                return "|".join(str(value) for value in typing.get_args(kind))
            if typing.get_origin(kind) is list:
                return "NAME,..."
        plain = {bool: "true|false", int: "INT", float: "FLOAT"}
        return next((plain[kind] for kind in kinds if kind in plain), "TEXT")

    def allowed(self) -> str:
        """What may be written, in words."""
        kinds = _kinds(self.info.annotation)
        literal = [
            value
            for kind in kinds
            for value in typing.get_args(kind)
            if typing.get_origin(kind) is Literal
        ]
        if literal:
            return "one of " + ", ".join(str(value) for value in literal)
        if bool in kinds:
            return "true or false"
        if int in kinds or float in kinds:
            number = "a whole number" if int in kinds else "a number"
            text = number + _bounds(self.info.metadata)
            return text + (" or nothing" if types.NoneType in kinds else "")
        if any(getattr(item, "pattern", None) for item in self.info.metadata):
            return "letters, digits, dots, hyphens and underscores"
        if list[Host] in kinds:
            return "names and addresses without a port, or none"
        if any(typing.get_origin(kind) is list for kind in kinds):
            least = [getattr(item, "min_length", None) for item in self.info.metadata]
            return "one or more names" if any(least) else "names, or none"
        return "text"


def _kinds(annotation: Any) -> list[Any]:
    """The plain types in an annotation."""
    if typing.get_origin(annotation) is Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]
    return [annotation]


def _bounds(metadata: list[Any]) -> str:
    found = {
        name: getattr(item, name)
        for item in metadata
        for name in ("ge", "gt", "le")
        if getattr(item, name, None) is not None
    }
    text = ""
    if "gt" in found:
        text += f" above {found['gt']:g}"
    elif "ge" in found:
        text += f" from {found['ge']:d}"
    if "le" in found:
        text += f"{', at most' if 'gt' in found else ' to'} {found['le']:.0f}"
    return text


@cache
def keys() -> dict[str, Key]:
    """Every setting, by its full name, in the order of the schema."""
    found: dict[str, Key] = {}

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                walk(kind, f"{prefix}{name}.")
            else:
                found[prefix + name] = Key(prefix + name, info)

    walk(Settings, "")
    return found


# -- loading -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Loaded:
    """Validated settings, what to warn about, and where each value that is set came from."""

    settings: Settings
    warnings: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)

    def shown(self) -> list[tuple[str, str, str]]:
        """Every setting as ``(key, value, source)``, without secrets."""
        return [
            (path, show(key, lookup(self.settings, path)), self.sources.get(path, "default"))
            for path, key in keys().items()
        ]


def lookup(settings: Settings, path: str) -> Any:
    """The value of one setting by its full name."""
    value: Any = settings
    for part in path.split("."):
        value = getattr(value, part)
    return value


def show(key: Key, value: Any) -> str:
    """A value as people may see it."""
    if key.secret:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        return MASK if text else ""
    if isinstance(value, list):
        return ",".join(redact_value(str(item)) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else redact_value(str(value))


def load(
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read all sources and validate; ConfigError lists every problem found.

    ``flags`` maps full names to values; None means not given.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    warnings: list[str] = []
    if config_file is not None:
        values, sources = read_file(config_file, keys())
        if problems := plain_keys_in_file(values, sources):
            raise ConfigError(problems)
        warnings += [*_secrets_in(values, sources), *_open_to_everybody(config_file)]
    _take_environment(environ or {}, values, sources, warnings)
    for path, value in (flags or {}).items():
        if value is not None:
            values[path], sources[path] = value, f"flag {keys()[path].flag}"
            warnings += _secret_in_flag(keys()[path], value)
    for path, preset in PROFILES.get(str(values.get("profile")), {}).items():
        if path not in values:
            values[path], sources[path] = preset, f"profile {values['profile']}"
    return Loaded(_validate(values, sources), warnings, sources)


def _validate(values: Mapping[str, Any], sources: Mapping[str, str]) -> Settings:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        level = tree
        for section in sections:
            level = level.setdefault(section, {})
        level[name] = value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        # A list reports each item; the setting as a whole is what people know.
        paths = {".".join(str(part) for part in item["loc"][:2]) for item in error.errors()}
        found = {path: keys().get(path) or keys()[path.split(".")[0]] for path in sorted(paths)}
        raise ConfigError(
            [_problem(key, values.get(key.path), sources) for key in found.values()]
        ) from None
    worker = settings.worker
    if worker.heartbeat_timeout <= worker.heartbeat_interval:
        raise ConfigError(
            [
                f"worker.heartbeat_timeout: {worker.heartbeat_timeout:g} s must be more than"
                f" worker.heartbeat_interval, {worker.heartbeat_interval:g} s"
            ]
        )
    queue = settings.queue
    try:
        check_retry(
            queue.retry_profile,
            queue.retry_base,
            queue.retry_max,
            queue.retry_jitter,
            prefix="queue.retry_",
        )
    except InvalidArgument as error:
        raise ConfigError([error.message]) from None
    return settings


def _problem(key: Key, value: Any, sources: Mapping[str, str]) -> str:
    shown = "this value" if key.secret else reprlib.repr(_without_secrets(value))
    return (
        f"{key.path}: {shown} is not allowed; allowed: {key.allowed()}"
        f" (from {sources.get(key.path, 'default')})"
    )


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redact_value(value)
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    if isinstance(value, dict):
        return {_without_secrets(name): _without_secrets(item) for name, item in value.items()}
    return value


def _secrets_in(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    return [
        f"{sources[path]}: {path} holds a secret; give it as {keys()[path].env} instead"
        for path, value in values.items()
        if value and not hashed_only(path) and (keys()[path].secret or holds_secret(str(value)))
    ]


def _open_to_everybody(file: Path) -> list[str]:
    mode = file.stat().st_mode & 0o777
    if not mode & 0o002:
        return []
    return [
        f"{file}: everybody may change it (mode {mode:03o}), and so who is let in and what is run;"
        f" run chmod o-w {file}"
    ]


def _secret_in_flag(key: Key, value: Any) -> list[str]:
    if not holds_secret(str(value)):
        return []
    return [f"flag {key.flag} holds a secret, and everybody can read a command line; use {key.env}"]


def _take_environment(
    environ: Mapping[str, str],
    values: dict[str, Any],
    sources: dict[str, str],
    warnings: list[str],
) -> None:
    names = {key.env: key.path for key in keys().values()}
    for name, value in environ.items():
        if name in names and value != "":  # an empty variable counts as not set
            values[names[name]], sources[names[name]] = value, f"environment {name}"
    warnings += unknown_variables(environ, names)


def environment_warnings(environ: Mapping[str, str]) -> list[str]:
    """What to tell somebody whose program reads no settings: variables that no program reads."""
    return unknown_variables(environ, [key.env for key in keys().values()])
