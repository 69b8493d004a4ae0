"""Define the sections of the settings: each setting has a default, a purpose, a unit and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
)

from jobqueue.core.clock import MAX_SECONDS
from jobqueue.redaction import redact_value

_MAX_PORT = 65535
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Allowed:
    """Describes the allowed values in words, for a type whose bounds do not describe them."""

    words: str


def setting(default: Any, about: str, unit: str = "", **bounds: Any) -> Any:
    """Define a setting by its default, its purpose, its unit and its bounds."""
    return Field(default, description=about, json_schema_extra={"unit": unit}, **bounds)


def secret_file(of: str) -> Any:
    """Define a setting that names a file, which contains the value of the secret setting ``of``."""
    return setting("", f"File that holds `{of}` instead; others may neither read nor change it.")


def _most(default: int, about: str, unit: str) -> Any:
    return setting(default, about, unit, ge=1, le=10**9)


def _split(value: object) -> object:
    """Split a comma-separated text into a list, as environment and flags give lists."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _no_bool(value: object) -> object:
    """Raise ValueError for a boolean, because pydantic reads YAML's ``yes`` as the number 1."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


def joined(value: object) -> object:
    """Join a list of texts with commas, because a file may give a list where text is expected."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return value


Names = Annotated[list[str], BeforeValidator(_split), Field(min_length=1)]
SomeNames = Annotated[list[str], BeforeValidator(_split)]
Host = Annotated[
    str,
    # "*", a host name, or an IPv4 or IPv6 address, without a port.
    StringConstraints(
        pattern=r"^(\*|[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\]?)$"
    ),
]
Hosts = Annotated[list[Host], BeforeValidator(_split)]
Int = Annotated[int, BeforeValidator(_no_bool)]
Topic = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$", max_length=249)]
Seconds = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]


class Section(BaseModel):
    """A base class for a section of the settings, whose ``repr`` masks secrets."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact_value(value) if isinstance(value, str) else value


class DbSection(Section):
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


class RedisSection(Section):
    url: str = setting(
        "",
        "Redis for the locks of several servers on one PostgreSQL: `redis://HOST:PORT/NUMBER`,"
        " `rediss://` (TLS); none = PostgreSQL's row locks alone.",
    )
    password: SecretStr = setting(SecretStr(""), "Password of Redis, in place of one in the URL.")
    password_file: str = secret_file("redis.password")
    timeout: Seconds = setting(
        0.05, "Longest wait for Redis; after it dispatch goes on without Redis.", "s", gt=0, le=60
    )


class KafkaSection(Section):
    bootstrap: str = setting(
        "",
        "Kafka to publish every transition to, as HOST:PORT, several with commas between; none = no"
        " event stream.",
    )
    topic_jobs: Topic = setting("jq.job-events", "Topic of everything that happens to jobs.")
    topic_dead_letters: Topic = setting(
        "job.dead-lettered", "Topic that dead letters are published to as well."
    )
    topic_queues: Topic = setting("jq.queue-events", "Topic of changes of queues and schedules.")
    dispatch: bool = setting(
        False,
        "The jq-server that leads tells workers their jobs by Kafka, and they connect to no server:"
        " the streaming topology. Needs a store in Redis.",
    )
    topic_requests: Topic = setting("job-requests", "Dispatch: topic of jobs to be assigned.")
    topic_assignments: Topic = setting(
        "job-assignments", "Dispatch: topic of assignments, with a partition for each worker."
    )
    topic_results: Topic = setting("job-results", "Dispatch: topic of the ends of attempts.")
    topic_workers: Topic = setting(
        "worker-events", "Dispatch: topic of workers that register or are lost."
    )
    assignment_partitions: Int = setting(
        64,
        "Dispatch: partitions of the assignments; if there are more workers, some share one.",
        "partitions",
        ge=1,
        le=10_000,
    )
    resend_after: Seconds = setting(
        5.0,
        "Dispatch: time after which an assignment that was not started is sent again.",
        "s",
        gt=0,
        le=_DAY,
    )
    partitions: Int = setting(
        6, "Partitions of a topic that jq-server creates.", "partitions", ge=1, le=1_000
    )
    replication: Int = setting(
        0,
        "Copies of a topic that jq-server creates; 0 = as Kafka is configured.",
        "copies",
        ge=0,
        le=100,
    )
    security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = setting(
        "plaintext", "Protection of the connections to Kafka."
    )
    sasl_mechanism: Literal["plain", "scram-sha-256", "scram-sha-512"] = setting(
        "scram-sha-512", "Mechanism of the login to Kafka, with `sasl_plaintext` and `sasl_ssl`."
    )
    username: str = setting("", "User name for the login to Kafka.")
    password: SecretStr = setting(SecretStr(""), "Password of Kafka.")
    password_file: str = secret_file("kafka.password")
    tls_ca: str = setting("", "File with the authorities to trust for Kafka; none = the system's.")
    abandon: bool = setting(
        False,
        "Give up the event stream of a store that was published before and names no Kafka any more:"
        " jobs are no longer kept for it.",
    )


class HttpSection(Section):
    enabled: bool = setting(True, "Serve the HTTP API, /metrics, /healthz and /readyz.")
    host: str = setting("127.0.0.1", "Address that HTTP listens on.", min_length=1)
    port: Int = setting(8080, "Port of HTTP; 0 takes a free one.", ge=0, le=_MAX_PORT)
    max_connections: Int = setting(
        3072,
        "Connections at a time; fewer if the process may open fewer files. At most a third of them"
        " are calls under way, a sixth waits, a sixth streams; one caller has half of each.",
        "connections",
        ge=12,
        le=1_000_000,
    )
    max_connections_per_address: Int = setting(
        2048,
        "Connections at a time from one address. Behind a proxy give it the number of"
        " `http.max_connections`.",
        "connections",
        ge=1,
        le=1_000_000,
    )
    allowed_hosts: Hosts = setting(
        [],
        "Names that a request may have in `Host`, beside `localhost` and `http.host`; `*` = any."
        " With none given, a server that asks callers for credentials takes any name.",
    )
    view: Literal["canonical", "scheduler", "producer"] = setting(
        "canonical", "Vocabulary of job states in HTTP answers, unless a request asks for another."
    )
    console: bool = setting(True, "Serve the console, the web page for operators, at `/ui/`.")


class GrpcSection(Section):
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
        " `default`, and the jobs of taskqueue.v1. A queue that does not exist is named in the log,"
        " and served when it is created.",
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
        60.0, "Time that a stopping jq-worker gives to its running jobs.", "s", ge=0, le=_DAY
    )
    metrics_host: str = setting("127.0.0.1", "Address of jq-worker's /metrics.", min_length=1)
    metrics_port: Int = setting(9464, "Port of jq-worker's /metrics; 0 = none.", ge=0, le=_MAX_PORT)


class QueueSection(Section):
    capacity: Int = setting(
        0, "PENDING jobs that a queue takes before it refuses more; 0 = unbounded.", "jobs", ge=0
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
    key_ttl: Seconds = setting(_DAY, "Time that an idempotency key is remembered.", "s", gt=0)
    poison_after: Int = setting(
        3,
        "Worker deaths under a job that make it a dead letter (POISON), the last one while it ran;"
        " 0 = never, and no job runs apart.",
        "deaths",
        ge=0,
    )
    retention: Seconds = setting(
        7 * _DAY,
        "Time that DONE jobs are kept, in queues without a setting of their own; 0 = for ever.",
        "s",
        ge=0,
        le=MAX_SECONDS,
    )
    dead_letter_retention: Seconds = setting(
        0.0,
        "Time that dead letters are kept, in queues without a setting of their own; 0 = until they"
        " are deleted.",
        "s",
        ge=0,
        le=MAX_SECONDS,
    )


class SchedulerSection(Section):
    batch_size: Int = setting(100, "Jobs assigned in one cycle.", "jobs", ge=1, le=10_000)
    interval: Seconds = setting(0.5, "Longest idle wait between two cycles.", "s", gt=0, le=60)
    assignment_timeout: Seconds = setting(
        60.0, "Time in which a worker must start a job that was assigned to it.", "s", gt=0, le=_DAY
    )
    leader_ttl: Seconds = setting(
        10.0,
        "Of several jq-servers on one store one leads: it fails lost workers over and removes old"
        " jobs. Another takes over when the leader is silent for this time.",
        "s",
        gt=0,
        le=3600,
    )


class CronSection(Section):
    catch_up: Seconds | None = setting(
        None,
        "Longest delay after which the newest missed tick of a schedule is still submitted, after a"
        " stop or an outage; 0 = missed ticks are skipped; nothing = as the app sets it, 3600 by"
        " default. Never more than `queue.key_ttl`.",
        "s",
        ge=0,
        le=_DAY,
    )


class ServerSection(Section):
    role: Literal["all", "api", "scheduler"] = setting(
        "all",
        "With `kafka.dispatch`, the part of this process: `api` answers HTTP and gRPC, `scheduler`"
        " may lead, and then assigns and publishes, `all` does both.",
    )
    shutdown_timeout: Seconds = setting(
        30.0,
        "Time that a stopping jq-server gives to requests, jobs and workers that drain.",
        "s",
        ge=0,
        le=_DAY,
    )
    insecure: bool = setting(False, "Listen on the network although callers need no credentials.")


class AuthSection(Section):
    api_keys: Annotated[SecretStr, BeforeValidator(joined)] = setting(
        SecretStr(""),
        "Callers, as NAME:ROLE+ROLE:KEY separated by commas; the roles are client, worker,"
        " operator, viewer and monitor. In the file a list, and in place of each KEY `sha256=` and"
        " its hash.",
    )
    api_keys_file: str = setting(
        "", "File with more of them, one on a line, which only its owner may read."
    )
    jwt_secret: SecretStr = setting(
        SecretStr(""),
        "Secret that tokens (JWT) are signed with, 32 bytes or more; none = no such tokens.",
    )
    jwt_secret_file: str = secret_file("auth.jwt_secret")
    jwt_keys_file: str = setting(
        "",
        "File with the public keys of the tokens' issuer, which only its owner may change: PEM, or"
        " a key set (JWKS) whose keys have names (`kid`). Read again when it changes; none = no"
        " such tokens.",
    )
    jwt_algorithms: SomeNames = setting(
        ["HS256", "RS256", "ES256", "EdDSA"],
        "Signatures that are accepted: HS256, HS384, HS512 with the secret; RS, PS and ES with 256,"
        " 384 or 512, and EdDSA (Ed25519), with a public key of that kind.",
    )
    jwt_issuer: str = setting("", "Issuer that a token must have in `iss`; none = any.")
    jwt_audience: str = setting("", "Audience that a token must name in `aud`.")
    jwt_roles_claim: str = setting("roles", "The claim that lists a caller's roles.")
    jwt_max_lifetime: Seconds = setting(
        0.0,
        "Longest time that a token may be valid for, from its `iat`, which it must have then, to"
        " its `exp`; 0 = no limit.",
        "s",
        ge=0,
        le=1e9,
    )
    jwt_leeway: Seconds = setting(
        10.0, "Greatest difference to the issuer's clock.", "s", ge=0, le=300
    )
    session_secret: SecretStr = setting(
        SecretStr(""),
        "Secret with which the server signs sessions of the console, 32 bytes or more. Servers"
        " behind one address need the same secret; none = a random secret at each start.",
    )
    session_secret_file: str = secret_file("auth.session_secret")


class TlsSection(Section):
    cert: str = setting(
        "",
        "PEM file with the certificate: of jq-server for both its ports, of jq-worker to show to"
        " the server.",
    )
    key: str = setting(
        "", "PEM file with the certificate's key, which others may neither read nor change."
    )
    ca: str = setting(
        "", "PEM file with the authority that a jq-worker trusts; none = those of the system."
    )
    client_ca: str = setting(
        "",
        "PEM file with the authority of client certificates. Set, gRPC takes no connection without"
        " one (mTLS), and HTTP takes one in place of a key or token.",
    )
    client_roles: SomeNames = setting(
        [],
        "Roles by the name in a client certificate, as NAME:ROLE+ROLE; `*` as the name stands for"
        " every other certificate. One that is not named has no role.",
    )


class LimitsSection(Section):
    submit_rate: Seconds = setting(
        0.0, "Jobs that one caller may submit in a second; 0 = no limit.", "jobs/s", ge=0, le=1e9
    )
    submit_burst: Int = _most(100, "Jobs that one caller may submit at once after a pause.", "jobs")
    calls: Int = _most(
        4_000,
        "Calls under way at a time, on gRPC and on HTTP each; HTTP takes fewer of all kinds, as"
        " `http.max_connections` says.",
        "calls",
    )
    calls_per_caller: Int = _most(2_000, "Of them, calls of one caller.", "calls")
    waits: Int = _most(40_000, "Calls at a time that wait for a job.", "calls")
    waits_per_caller: Int = _most(20_000, "Of them, calls of one caller.", "calls")
    streams: Int = _most(
        8_000, "Streams at a time: each worker has one, and each watch of a job is one.", "streams"
    )
    streams_per_caller: Int = _most(4_000, "Of them, streams of one caller.", "streams")
    submit_streams: Int = _most(
        128,
        "Streams at a time on which clients submit over gRPC; an SDK that gets none submits by"
        " plain calls.",
        "streams",
    )
    submit_streams_per_caller: Int = _most(32, "Of them, streams of one caller.", "streams")
    workers_per_caller: Int = setting(
        10_000,
        "Workers that one caller may have registered at a time, if callers are known; 0 = no"
        " limit.",
        "workers",
        ge=0,
        le=10**6,
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
        "File to append the server's audit log to, as JSON lines; empty = it is in the log.",
    )
