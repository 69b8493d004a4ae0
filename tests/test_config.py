"""Settings: precedence, every error with its key and place, secrets never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue import config
from jobqueue.cli.reference import reference
from jobqueue.config import load
from jobqueue.config_file import ConfigError
from jobqueue.redaction import holds_secret, redact
from jobqueue.server import options

SECRET = "correct-horse"


@pytest.fixture
def yaml_file(tmp_path):
    def write(text: str) -> Path:
        file = tmp_path / "settings.yaml"
        file.write_text(text)
        return file

    return write


def problems(**sources) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(**sources)
    return caught.value.problems


def test_defaults_are_those_of_the_documents():
    settings = load().settings
    assert settings.db.url == "sqlite:///data/jobqueue.db"
    assert (settings.http.host, settings.http.port, settings.http.view) == (
        "127.0.0.1",
        8080,
        "canonical",
    )
    assert (settings.grpc.port, settings.grpc.reflection) == (50051, False)
    assert (settings.worker.concurrency, settings.worker.queues) == (4, ["default"])
    assert settings.worker.heartbeat_interval == 5
    assert settings.worker.heartbeat_timeout == 30
    assert (settings.worker.shutdown_timeout, settings.server.shutdown_timeout) == (60, 30)
    assert (settings.queue.max_retries, settings.queue.capacity) == (3, 0)
    assert settings.queue.max_payload_bytes == 1024 * 1024
    assert settings.queue.key_ttl == 86_400
    assert (settings.scheduler.batch_size, settings.scheduler.interval) == (100, 0.5)
    assert settings.scheduler.assignment_timeout == 60


@pytest.mark.req("jq:FR-043", "jq:FR-044")
def test_flag_beats_environment_beats_file_beats_default(yaml_file):
    file = yaml_file("http:\n  port: 1001\ngrpc:\n  port: 1002\nqueue:\n  max_retries: 7\n")
    loaded = load(
        file,
        {"JQ_HTTP_PORT": "2001", "JQ_GRPC_PORT": "2002"},
        {"http.port": "3001", "grpc.port": None},
    )
    settings = loaded.settings
    assert (settings.http.port, settings.grpc.port, settings.queue.max_retries) == (3001, 2002, 7)
    assert settings.queue.capacity == 0
    assert loaded.sources == {
        "http.port": "flag --http-port",
        "grpc.port": "environment JQ_GRPC_PORT",
        "queue.max_retries": f"{file}:6",
    }


@pytest.mark.req("jq:FR-044")
def test_every_setting_has_an_environment_variable():
    examples = {"text": "x", "true or false": "false", "one or more names": "a, b"}
    examples["names, or none"] = "a, b"
    examples["names and addresses without a port, or none"] = "a, b"
    examples["a number from 0 to 1 or nothing"] = "0.5"
    for key in config.keys().values():
        allowed = key.allowed()
        if allowed.startswith("one of "):
            value = allowed.removeprefix("one of ").split(", ")[-1]
        else:
            value = examples.get(allowed, "20")
        settings = load(environ={key.env: value}).settings
        found = config.lookup(settings, key.path)
        if key.secret:
            assert found.get_secret_value() == value
        elif isinstance(found, list):
            assert found == ["a", "b"]
        else:
            assert str(found).lower().removesuffix(".0") == value
    assert config.keys()["queue.max_retries"].env == "JQ_QUEUE_MAX_RETRIES"
    assert config.keys()["db.password"].env == "JQ_DB_PASSWORD"


def test_an_empty_variable_counts_as_not_set():
    assert load(environ={"JQ_HTTP_PORT": ""}).settings.http.port == 8080


def test_a_misspelt_variable_is_warned_about_and_others_are_not():
    loaded = load(
        environ={
            "JQ_QUEUE_MAX_RETRYS": "5",
            "JQ_TEST_POSTGRES": "1",
            "JQ_URL": "memory://",
            "JQ_COMMIT": "abc",
            "JQ_API_KEY": SECRET,
            "JQ_API_KEYS": SECRET,
            "JQ_FROBNICATE": "1",
            "JQ_URLS": "memory://",
            "JQ_JOB_ID": "1",
            "JQ_SERVER_SERVICE_HOST": "10.0.0.1",  # Kubernetes, of a service "jq-server"
            "JQ_SERVER_SERVICE_PORT_HTTP": "8080",
            "JQ_SERVER_PORT": "tcp://10.0.0.1:8080",
            "JQ_SERVER_PORT_8080_TCP_ADDR": "10.0.0.1",
            "JQ_GRCP_PORT": "5000",
            "PATH": "/bin",
        }
    )
    assert loaded.warnings == [
        "environment variable JQ_QUEUE_MAX_RETRYS is unknown and ignored; did you mean"
        " JQ_QUEUE_MAX_RETRIES?",
        "environment variable JQ_API_KEYS is unknown and ignored; did you mean JQ_AUTH_API_KEYS"
        " or JQ_API_KEY?",
        "environment variable JQ_FROBNICATE is unknown and ignored",
        "environment variable JQ_URLS is unknown and ignored; did you mean JQ_DB_URL or JQ_URL?",
        "environment variable JQ_GRCP_PORT is unknown and ignored; did you mean JQ_GRPC_PORT?",
    ]


def test_an_unknown_key_is_named_with_its_place_the_nearest_and_the_allowed(yaml_file):
    file = yaml_file("http:\n  port: 80\nqueue:\n  max_retires: 3\n")
    (problem,) = problems(config_file=file)
    assert problem.startswith(f"{file}:4: unknown key queue.max_retires (did you mean")
    assert "did you mean queue.max_retries?" in problem
    assert "allowed here: capacity, dead_letter_retention, key_ttl" in problem


def test_all_problems_are_told_at_once(yaml_file):
    file = yaml_file("nonsense: 1\ndb:\n  url: memory://\n  user: x\n")
    first, second = problems(config_file=file)
    assert "unknown key nonsense; allowed here: auth, cron, db, grpc" in first
    assert f"{file}:4: unknown key db.user" in second


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http:\n  port: abc\n", "http.port: 'abc' is not allowed; allowed: a whole number from 0"),
        ("http:\n  port: 70000\n", "http.port: 70000 is not allowed"),
        ("http:\n  port: yes\n", "http.port: True is not allowed"),
        ("http:\n  port: null\n", "http.port: None is not allowed"),
        ("http:\n  view: klingon\n", "allowed: one of canonical, scheduler, producer"),
        ("worker:\n  queues: []\n", "worker.queues: [] is not allowed; allowed: one or more names"),
        ("worker:\n  queues: [a, 3]\n", "worker.queues: ['a', 3] is not allowed"),
        ("queue:\n  ttl: -1\n", "queue.ttl: -1 is not allowed; allowed: a number above 0"),
        ("queue:\n  ttl: .inf\n", "queue.ttl: inf is not allowed"),
        ("scheduler:\n  interval: .nan\n", "scheduler.interval: nan is not allowed"),
        ("grpc:\n  reflection: perhaps\n", "allowed: true or false"),
        ("db:\n  url: [1]\n", "db.url: [1] is not allowed; allowed: text"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed_and_where_it_stands(yaml_file, text, expected):
    file = yaml_file(text)
    (problem,) = problems(config_file=file)
    assert expected in problem
    assert problem.endswith(f"(from {file}:2)")


def test_a_wrong_value_from_elsewhere_names_its_source():
    assert problems(environ={"JQ_HTTP_PORT": "x"})[0].endswith("(from environment JQ_HTTP_PORT)")
    assert problems(flags={"http.port": "x"})[0].endswith("(from flag --http-port)")


def test_heartbeats_must_fit_their_timeout():
    (problem,) = problems(flags={"worker.heartbeat_interval": 40})
    assert "worker.heartbeat_timeout: 30 s must be more than worker.heartbeat_interval" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http: [1\n", "not valid YAML"),
        ("- a\n- b\n", "the file must hold keys; allowed: auth, cron, db, grpc"),
        (
            "http: 3\n",
            "http must hold keys; allowed: allowed_hosts, console, enabled, host, max",
        ),
        ("log:\n  level: info\n  level: debug\n", ":3: log.level is given twice"),
        ("http: !!python/object:os.system {}\n", "unknown key"),
        ("a: &a [*a]\n", "unknown key a"),
        ("\x00", "not valid YAML"),
    ],
)
def test_a_file_of_the_wrong_shape_is_refused(yaml_file, text, expected):
    if "python/object" in text:
        text = "db:\n  url: !!python/object/apply:os.getcwd []\n"
        expected = ":2:8: not valid YAML at this line and column; a text that begins with"
    (problem,) = problems(config_file=yaml_file(text))
    assert expected in problem


@pytest.mark.parametrize("text", ["", "# nothing\n", "http:\nqueue: ~\n"])
def test_an_empty_file_or_section_changes_nothing(yaml_file, text):
    assert load(yaml_file(text)).settings == load().settings


def test_a_file_that_is_not_there_is_named(tmp_path):
    (problem,) = problems(config_file=tmp_path / "nowhere.yaml")
    assert "nowhere.yaml: No such file" in problem


def test_a_huge_file_is_refused(yaml_file):
    (problem,) = problems(config_file=yaml_file("# " + "x" * (1 << 20)))
    assert "larger than" in problem


@pytest.mark.req("jq:FR-045")
def test_secrets_in_the_file_are_warned_about_by_name_only(yaml_file):
    file = yaml_file(
        f"db:\n  url: postgresql://me:{SECRET}@db/jobs\n  password: {SECRET}\n"
        f"redis:\n  password: {SECRET}\nkafka:\n  password: {SECRET}\n"
    )
    warnings = load(file).warnings
    assert [line.split(" holds a secret")[0] for line in warnings] == [
        f"{file}:2: db.url",
        f"{file}:3: db.password",
        f"{file}:5: redis.password",
        f"{file}:7: kafka.password",
    ]
    assert "JQ_KAFKA_PASSWORD" in warnings[3]
    assert SECRET not in "".join(warnings)


@pytest.mark.req("jq:FR-045")
def test_secrets_in_the_environment_are_not_warned_about_and_never_shown():
    loaded = load(
        environ={"JQ_DB_PASSWORD": SECRET, "JQ_DB_URL": f"postgresql://me:{SECRET}@db/jobs"}
    )
    assert loaded.warnings == []
    assert loaded.settings.db.password.get_secret_value() == SECRET
    assert loaded.settings.db.url.count(SECRET) == 1
    for text in (repr(loaded.settings), str(loaded.settings), repr(loaded), str(loaded.shown())):
        assert SECRET not in text
    assert ("db.url", "postgresql://me:***@db/jobs", "environment JQ_DB_URL") in loaded.shown()


@pytest.mark.req("jq:FR-045")
def test_a_secret_in_a_flag_is_warned_about():
    loaded = load(flags={"db.url": f"postgresql://me:{SECRET}@db/jobs", "redis.url": "redis://h"})
    (warning,) = loaded.warnings
    assert "flag --db-url holds a secret" in warning
    assert "JQ_DB_URL" in warning
    assert SECRET not in warning


def test_a_secret_of_the_wrong_type_is_not_shown_in_the_error(yaml_file):
    (problem,) = problems(config_file=yaml_file(f"db:\n  password: [{SECRET}]\n"))
    assert problem.startswith("db.password: this value is not allowed")
    assert SECRET not in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("redis://:s@host:6379/0", "redis://:***@host:6379/0"),
        ("x://u:p@ss/w@rd@host/db", "x://u:***@host/db"),
        ("x://u:1234@host", "x://u:***@host"),
        ("host=h password=secret user=u", "host=h password=*** user=u"),
        ("authorization: Bearer abc.def-ghi", "authorization: Bearer ***"),
        ("X-API-Key: 0123456789", "X-API-Key: ***"),
        ("as Authorization: Bearer ...", "as Authorization: Bearer ..."),
        ("http://127.0.0.1:8080/x?mail=a@b.c", "http://127.0.0.1:8080/x?mail=a@b.c"),
        ("sqlite:///data/jobs.db", "sqlite:///data/jobs.db"),
    ],
)
def test_passwords_are_masked_in_text(text, expected):
    assert redact(text) == expected
    assert holds_secret(text) is (text != expected)


@pytest.mark.req("inp:BACKPRESSURE", "inp:RETRY")
def test_the_producer_profile_changes_defaults_only():
    loaded = load(environ={"JQ_PROFILE": "producer", "JQ_QUEUE_CAPACITY": "9"})
    settings = loaded.settings
    assert (settings.queue.capacity, settings.queue.retry_profile) == (9, "producer")
    assert (settings.http.view, settings.worker.concurrency) == ("producer", 5)
    assert loaded.sources["http.view"] == "profile producer"
    assert load(flags={"profile": "producer"}).settings.queue.capacity == 100
    assert "allowed: one of default, producer" in problems(flags={"profile": "x"})[0]


@pytest.mark.parametrize("profile", config.PROFILES)
def test_done_jobs_are_kept_for_a_week_in_every_profile(profile: str):
    """Above all with the streaming one: Redis has everything in memory."""
    loaded = load(flags={"profile": profile})
    assert options.engine(loaded.settings).retention == 7 * 86_400.0
    assert "queue.retention" not in config.PROFILES[profile]  # the default says it, once


HASHED = f"sha256={'ab' * 32}"


def test_keys_in_the_file_are_hashes_and_raise_no_warning(yaml_file):
    file = yaml_file(f"auth:\n  api_keys:\n    - ci:client:{HASHED}\n    - ops:operator:{HASHED}\n")
    loaded = load(file)
    assert loaded.warnings == []
    expected = f"ci:client:{HASHED},ops:operator:{HASHED}"
    assert loaded.settings.auth.api_keys.get_secret_value() == expected
    assert HASHED not in repr(loaded.settings) + str(loaded.shown())


def test_a_plain_key_in_the_file_is_refused_and_not_shown(yaml_file):
    text = f"auth:\n  api_keys: ['ci:client:{HASHED}', 'ops:operator:{SECRET}']\n"
    (problem,) = problems(config_file=yaml_file(text))
    assert ":2: auth.api_keys: entry 2 must end with sha256=" in problem
    assert "JQ_AUTH_API_KEYS" in problem
    assert SECRET not in problem


def test_the_reference_page_is_what_the_schema_says():
    page = Path(__file__).parents[1] / "docs" / "configuration.md"
    assert page.read_text() == reference(), (
        "run: python -m jobqueue.cli.reference docs/configuration.md"
    )


@pytest.mark.req("jq:FR-033", "jq:FR-044")
def test_the_waits_before_retries_are_settings(yaml_file):
    queue = load().settings.queue
    assert (queue.retry_base, queue.retry_max, queue.retry_jitter) == (None, None, None)
    file = yaml_file("queue:\n  retry_profile: producer\n  retry_base: 2\n  retry_max: 30\n")
    settings = load(
        file, environ={"JQ_QUEUE_RETRY_MAX": "60"}, flags={"queue.retry_jitter": "0.5"}
    ).settings
    made = options.queue(settings)
    assert (made.retry_profile, made.retry_base) == ("producer", 2.0)
    assert (made.retry_max, made.retry_jitter) == (60.0, 0.5)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            {"queue.retry_base": "0"},
            "queue.retry_base: '0' is not allowed; allowed: a number above",
        ),
        ({"queue.retry_jitter": "2"}, "queue.retry_jitter: '2' is not allowed; allowed: a number"),
        (
            {"queue.retry_base": "400"},
            "queue.retry_base: 400 s is more than queue.retry_max, 300 s",
        ),
        ({"queue.retry_max": "2"}, "queue.retry_max: 2 s is less than the first wait, 5 s in the"),
    ],
)
def test_waits_that_make_no_sense_are_told(flags, told):
    (problem,) = problems(flags=flags)
    assert problem.startswith(told), problem
