"""Define the tree of settings, and load its values from all sources.

The sources are, each overriding the ones before: defaults, the profile, the YAML file, ``JQ_``
environment variables, and flags. The names of variables come from the schema:
``queue.max_retries`` is ``JQ_QUEUE_MAX_RETRIES``. A program calls ``load`` once at its start and
passes the result on; no other code reads the environment. ``docs/configuration.md`` is generated
from the schema.
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

from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from jobqueue.config_file import PREFIX, ConfigError, read_file, unknown_variables
from jobqueue.config_section import (
    Allowed,
    AuthSection,
    CronSection,
    DbSection,
    GrpcSection,
    Host,
    HttpSection,
    KafkaSection,
    LimitsSection,
    LogSection,
    QueueSection,
    RedisSection,
    SchedulerSection,
    Section,
    ServerSection,
    TlsSection,
    WorkerSection,
    joined,
    setting,
)
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.retry import check_retry
from jobqueue.redaction import MASK, holds_secret, redact_value

_API_KEYS = "auth.api_keys"
_HASHED = "sha256="


class Settings(Section):
    """The root of the settings tree: one section for each part of the system."""

    profile: Literal["default", "producer", "streaming"] = setting(
        "default",
        "A set of defaults: `producer` bounds queues at 100 jobs, retries after 1 to 10 s, runs 5"
        " jobs at once and answers HTTP in the producer vocabulary; `streaming` dispatches by"
        " Kafka, retries after 1, 2, 4 and 8 s and answers HTTP in the scheduler vocabulary.",
    )
    db: DbSection = Field(default_factory=DbSection)
    redis: RedisSection = Field(default_factory=RedisSection)
    kafka: KafkaSection = Field(default_factory=KafkaSection)
    http: HttpSection = Field(default_factory=HttpSection)
    grpc: GrpcSection = Field(default_factory=GrpcSection)
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
class ConfigKey:
    """Describes one setting: its full name, type, default and allowed values."""

    path: str
    info: FieldInfo

    @property
    def env(self) -> str:
        """Return the name of the setting's environment variable."""
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """Return the name of the setting's flag; not every program has it."""
        return "--" + self.path.replace(".", "-").replace("_", "-")

    @property
    def secret(self) -> bool:
        """Return True if the setting's value must not be shown."""
        return self.info.annotation is SecretStr

    @property
    def default(self) -> Any:
        return self.info.get_default(call_default_factory=True)

    @property
    def unit(self) -> str:
        extra = self.info.json_schema_extra
        return str(extra.get("unit", "")) if isinstance(extra, dict) else ""

    @property
    def metavar(self) -> str:
        """Return the placeholder that stands for the value in help texts."""
        kinds = _kinds(self.info.annotation)
        for kind in kinds:
            if typing.get_origin(kind) is Literal:
                return "|".join(str(value) for value in typing.get_args(kind))
            if typing.get_origin(kind) is list:
                return "NAME,..."
        plain = {bool: "true|false", int: "INT", float: "FLOAT"}
        return next((plain[kind] for kind in kinds if kind in plain), "TEXT")

    def allowed(self) -> str:
        """Return a description of the allowed values."""
        for item in self.info.metadata:
            if isinstance(item, Allowed):
                return item.words
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
    """Return the types in an annotation, without ``Annotated`` and unions."""
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
def keys() -> dict[str, ConfigKey]:
    """Return every setting by its full name, in the order of the schema."""
    found: dict[str, ConfigKey] = {}

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                walk(kind, f"{prefix}{name}.")
            else:
                found[prefix + name] = ConfigKey(prefix + name, info)

    walk(Settings, "")
    return found


# -- loading -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Loaded:
    """The loaded settings, the warnings, and the source of each value that is not a default."""

    settings: Settings
    warnings: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)

    def shown(self) -> list[tuple[str, str, str]]:
        """Return every setting as ``(full name, value, source)``, with secrets masked."""
        return [
            (path, show(key, lookup(self.settings, path)), self.sources.get(path, "default"))
            for path, key in keys().items()
        ]


def lookup(settings: Settings, path: str) -> Any:
    """Return the value of the setting with this full name."""
    value: Any = settings
    for part in path.split("."):
        value = getattr(value, part)
    return value


def show(key: ConfigKey, value: Any) -> str:
    """Return the value of a setting as text, with secrets masked."""
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
    """Read the settings from all sources, and validate them.

    ``flags`` has values by full name; None means that the flag was not given. Raises ConfigError
    with all problems found.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    warnings: list[str] = []
    if config_file is not None:
        values, sources = read_file(config_file, keys())
        if problems := _plain_keys_in_file(values, sources):
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
        # Pydantic reports each bad item of a list; the message names the setting only once.
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


def _problem(key: ConfigKey, value: Any, sources: Mapping[str, str]) -> str:
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


def _plain_keys_in_file(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    """Return a problem for each API key in the file that is not hashed."""
    # Others may be able to read the file.
    given = joined(values.get(_API_KEYS, ""))
    if not isinstance(given, str):
        return []  # the schema refuses it
    entries = [entry.strip() for entry in given.split(",") if entry.strip()]
    return [
        f"{sources[_API_KEYS]}: {_API_KEYS}: entry {number} must end with {_HASHED} and the key's"
        " hash; plain keys are allowed only in JQ_AUTH_API_KEYS or auth.api_keys_file"
        for number, entry in enumerate(entries, 1)
        if not entry.split(":", 2)[-1].strip().startswith(_HASHED)
    ]


def _secrets_in(values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    return [
        f"{sources[path]}: {path} holds a secret; give it as {keys()[path].env} instead"
        for path, value in values.items()
        if value and path != _API_KEYS and (keys()[path].secret or holds_secret(str(value)))
    ]


def _open_to_everybody(file: Path) -> list[str]:
    mode = file.stat().st_mode & 0o777
    if not mode & 0o002:
        return []
    return [
        f"{file}: everybody may change this file (mode {mode:03o}), and so decide who gets access"
        f" and what is run; run chmod o-w {file}"
    ]


def _secret_in_flag(key: ConfigKey, value: Any) -> list[str]:
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
    """Return warnings about unknown ``JQ_`` variables, for a program that loads no settings."""
    return unknown_variables(environ, [key.env for key in keys().values()])
