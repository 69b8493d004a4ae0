"""Passwords of any characters, and every place where people see settings, errors and logs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue import config
from jobqueue.cli import server as program
from jobqueue.cli.setting_flags import parse_sets
from jobqueue.client.app import JobQueue
from jobqueue.config_file import ConfigError
from jobqueue.connect.backends import create_store
from jobqueue.connect.urls import check_redis_url, parse_url, with_password
from jobqueue.core.errors import InvalidArgument, JobQueueError
from jobqueue.core.job import Assignment, JobSpec
from jobqueue.fleet import services
from jobqueue.fleet.layout import BackingService
from jobqueue.logs import JsonFormatter, TextFormatter
from jobqueue.redaction import holds_secret, redact, redact_value
from jobqueue.server.stream import kafka
from jobqueue.stores.redis.store import RedisStore
from jobqueue.worker.executors.program import environment
from tests.cli import processes

# Two words around what is odd, so that a part of it that is shown can be told from other text.
HEAD, TAIL = "Hunter2xq", "Zebra9vk"
ODD = st.text(
    alphabet=st.sampled_from("'\"/ @:?#&=%\\[],;<>`$\t\n\r*éß☃0123456789ab")
    | st.characters(codec="utf-8"),
    max_size=8,
)
PASSWORDS = st.builds(lambda odd: f"{HEAD}{odd}{TAIL}", ODD)
PLACES = st.sampled_from(
    ["db", "db:5432", "[::1]:5432", "db1:5432,db2:5433", "127.0.0.1:6379", "[fe80::1]"]
)
SCHEMES = st.sampled_from(["postgresql", "postgres", "redis", "rediss", "kafka", "grpc", "mysql"])
ENDINGS = st.sampled_from(["", "/", "/jobs", "/0", "/jobs?sslmode=require", "/0?prefix=x"])
URLS = st.builds(
    lambda scheme, user, password, place, end: f"{scheme}://{user}:{password}@{place}{end}",
    SCHEMES,
    st.sampled_from(["me", "", "o'brien", "a.b", "a%40b"]),
    PASSWORDS,
    PLACES,
    ENDINGS,
)


PORTS = ("--http-port", "0", "--grpc-port", "0")


def assert_hidden(text: str) -> None:
    assert HEAD not in text, text
    assert TAIL not in text, text


def messages_of(url: str) -> list[str]:
    """What each part that reads a URL says about this one, if it says anything."""
    said = []
    for read in (
        lambda: parse_url(url, "db.url"),
        lambda: check_redis_url(url),
        lambda: create_store(url, create=False),
        lambda: kafka(config.load(flags={"kafka.bootstrap": url}).settings),
        lambda: parse_sets([url]),
        lambda: parse_sets([f"db.url {url}"]),
        lambda: config.load(flags={"worker.concurrency": url}),
        lambda: config.load(flags={"log.level": [url]}),
    ):
        try:
            read()
        except JobQueueError as error:  # a ConfigError is one, too
            said.append(f"{error} {error!r}")
    return said


@given(URLS)
def test_no_password_in_a_url_is_shown(url: str) -> None:
    assert holds_secret(url)
    assert_hidden(redact_value(url))
    assert redact_value(redact_value(url)) == redact_value(url)
    loaded = config.load(environ={"JQ_DB_URL": url, "JQ_REDIS_URL": url, "JQ_WORKER_SERVER": url})
    assert_hidden(f"{loaded.shown()} {loaded.settings!r} {loaded!r}")
    for said in messages_of(url):
        assert_hidden(said)


@given(PASSWORDS)
def test_no_password_that_was_escaped_is_shown(password: str) -> None:
    """As `JQ_DB_PASSWORD` puts it into the URL, and as people write it by the rules."""
    for url in (
        with_password("postgresql://me@db/jobs?sslmode=require", password),
        with_password("redis://cache:6379/0", password),
        f"postgresql://me@db/jobs?password={quote(password, safe='')}&sslmode=require",
        f"postgresql://db/jobs?sslpassword={quote(password)}",
        f"postgresql://db/jobs?pass%77ord={quote(password, safe='')}",
    ):
        shown = redact_value(url)
        assert_hidden(shown)
        assert "@db/jobs" in shown or "cache:6379/0" in shown or "//db/jobs" in shown
        if "%77" not in url:  # in prose nobody looks for names that are escaped
            assert_hidden(redact(f"cannot reach {url}: refused"))


def test_a_password_that_is_no_text_is_sent_as_its_bytes() -> None:
    """As Python reads it from an environment in another encoding."""
    given = os.fsdecode(b"Hunter\xff")
    assert with_password("redis://cache", given) == "redis://:Hunter%FF@cache"


@given(PASSWORDS, st.sampled_from(["", " user=me", " sslmode=require host=db"]))
def test_no_password_of_a_connection_string_is_shown(password: str, more: str) -> None:
    """libpq's form is no URL: it is refused, and the refusal shows it."""
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    for text in (
        f"host=db password={password}{more}",
        f"host=db password='{escaped}'{more}",
        f"host=db sslpassword = {password}{more}",
        f"me:{password}@db:5432/jobs",
    ):
        assert_hidden(redact_value(text))
        for said in messages_of(text):
            assert_hidden(said)


@given(
    st.builds(lambda odd: f"{HEAD}{odd}{TAIL}", st.text(st.sampled_from("'\"/ @:?#&=%\\[],;ab")))
)
def test_no_password_in_a_url_is_logged(password: str) -> None:
    """A text tells where a URL begins, and not where it ends: a line's last @ does."""
    url = f"postgresql://me:{password}@db:5432/jobs"
    record = logging.makeLogRecord(
        {
            "msg": "cannot reach %s: timeout; trying again",
            "args": (url,),
            "url": url,
            "nested": {"urls": [url], "password": password},
        }
    )
    try:
        raise OSError(f"{url!r} said no")
    except OSError:
        record.exc_info = sys.exc_info()
    line = JsonFormatter("t").format(record)
    assert_hidden(line)
    shown = json.loads(line)
    assert shown["url"] == "postgresql://me:***@db:5432/jobs"
    assert shown["message"] == f"cannot reach {shown['url']}: timeout; trying again"
    assert_hidden(TextFormatter().format(record))


@given(PASSWORDS)
def test_no_password_is_in_the_repr_of_an_app(password: str) -> None:
    try:
        app = JobQueue(f"postgresql://me:{password}@db/jobs")
    except JobQueueError as error:
        assert_hidden(f"{error} {error!r}")
    else:
        assert_hidden(repr(app))


def test_what_is_no_secret_is_shown() -> None:
    for text in (
        "postgresql://db1:5432,db2:5433/jobs?sslmode=require",
        "postgresql://me@db/jobs",
        "redis://[::1]:6379/0?prefix=x",
        "grpc://host1:50051,host2:50051",
        "sqlite:////home/me@corp/a:b@c/jobs.db",
        "memory://",
        "broker1:9092,broker2:9092",
        "worker-1",
        "127.0.0.1:50051",
    ):
        assert redact_value(text) == text
    for text in (
        "http://127.0.0.1:8080/x?mail=a@b.c",
        "redis://cache:6379 cannot be reached; tell ops@example.org",
        "http://host: no answer",
    ):
        assert redact(text) == text
    both = "from postgresql://a:x@one/db to redis://:y@two/0"
    assert redact(both) == "from postgresql://a:***@one/db to redis://:***@two/0"


def test_the_program_shows_no_password_at_a_dry_run(tmp_path: Path) -> None:
    place = f"://me:{HEAD}a'b{TAIL}@127.0.0.1:1/0"
    done = dry_run(tmp_path, JQ_DB_URL=f"postgresql{place}", JQ_REDIS_URL=f"redis{place}")
    assert done.returncode == 1
    for scheme in ("postgresql", "redis"):
        assert f"{scheme}://me:***@127.0.0.1:1/0" in done.stdout
    assert_hidden(done.stdout + done.stderr)


@pytest.mark.parametrize(
    "password", ["a'b", 'a"b', "a/b", "a b", "a@b", "a?b", "a#b", "a%2Fb", "a\\b", "a&b=c"]
)
@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_a_dry_run_shows_no_password(
    password: str, scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{scheme}://me:{HEAD}{password}{TAIL}@127.0.0.1:1/0"
    monkeypatch.setenv("JQ_DB_URL", url)
    monkeypatch.setenv("JQ_REDIS_URL", url)
    # Nobody answers there, however long it tries.
    defaults = RedisStore.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience", 0.1)
    assert program.run(["--dry-run", *PORTS]) == 1
    said = capsys.readouterr()
    assert "***@127.0.0.1:1/0" in said.out
    assert_hidden(said.out + said.err)


@pytest.mark.parametrize("odd", ["5432?", "5432/", "5432#", "a@b?"])
def test_a_part_of_a_password_is_not_taken_for_a_host(odd: str) -> None:
    """`jq-ctl up` shows the host of a service that it was given."""
    for name, scheme in (("postgres", "postgresql"), ("redis", "redis")):
        named = BackingService(name, f"{scheme}://{HEAD}:{odd}{TAIL}@db/0")
        with pytest.raises(InvalidArgument) as refused:
            services.check((named,))
        assert_hidden(str(refused.value))


def test_a_dry_run_shows_no_password_of_kafka(tmp_path: Path) -> None:
    done = dry_run(tmp_path, JQ_KAFKA_BOOTSTRAP=f"me:{HEAD}'{TAIL}@127.0.0.1:1")
    assert done.returncode == 1
    assert_hidden(done.stdout + done.stderr)


def dry_run(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return processes.run("server", "--dry-run", *PORTS, cwd=folder, timeout=30.0, **environ)


@pytest.mark.parametrize(
    "value",
    [
        *(f"{mark}{HEAD}" for mark in ("*", "!", "!!", "!a!", "&a *", "%", "@", "`", "!!binary ")),
        *(f"{mark}{HEAD}: {TAIL}" for mark in ("*", "!", "!a!", "{", "[", '"\\q')),
        f"\ndb: {{password:{HEAD}}}",
        f"\ndb: {{password:{HEAD}, password:{HEAD}}}",
    ],
)
def test_no_value_is_in_an_error_of_the_file(tmp_path: Path, value: str) -> None:
    """A password that nobody put in quotes means something else to YAML."""
    file = tmp_path / "jq.yaml"
    file.write_text(f"kafka:\n  password: {value}\n")
    with pytest.raises(ConfigError) as refused:
        config.load(file, environ={})
    assert_hidden(str(refused.value))
    assert f"{file}:" in str(refused.value)


@pytest.mark.parametrize("name", ["JQ_WORKER_SERVER", "JQ_DB_URL", "JQ_URL", "JQ_KAFKA_BOOTSTRAP"])
def test_a_program_of_a_worker_does_not_see_a_password_in_an_address(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result may show all that it sees, and who submits a job may read that."""
    spec = JobSpec(payload=b"1")
    job = Assignment(1, "id", spec, 1, 1, "worker", 0, 0.0, None, 0)
    monkeypatch.setenv(name, f"redis://me:{HEAD}@db:6379/0")
    assert name not in environment(job)
    monkeypatch.setenv("JQ_WORKER_SERVER", "db:50051")
    assert environment(job)["JQ_WORKER_SERVER"] == "db:50051"
