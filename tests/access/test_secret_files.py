"""Every secret may stand in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue import config
from jobqueue.access.files import environment_secret, read_secret
from jobqueue.access.sessions import ConsoleSessions
from jobqueue.cli.session import choose_credentials, choose_redis
from jobqueue.core.errors import InvalidArgument
from jobqueue.server import options, security, stream

SECRET = "correct-horse-battery-staple-and-more"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "secret"
    made.write_text(f"{SECRET}\n")
    made.chmod(0o440)  # as Kubernetes mounts it, for the group of the pod
    return made


def settings(**environ: object) -> config.Settings:
    told = {f"JQ_{name}": str(value) for name, value in environ.items()}
    return config.load(None, told, {}).settings


def test_every_secret_setting_has_one_with_its_file() -> None:
    paths = config.keys()
    assert [f"{path}_file" in paths for path, key in paths.items() if key.secret] == [True] * 6


def test_passwords_are_taken_from_files(file: Path) -> None:
    told = settings(DB_URL="postgresql://jq@db/jobs", DB_PASSWORD_FILE=file)
    assert options.db_url(told) == f"postgresql://jq:{SECRET}@db/jobs"
    assert security.password(settings(REDIS_PASSWORD_FILE=file).redis, "redis") == SECRET
    by_kafka = settings(
        KAFKA_BOOTSTRAP="kafka:9092",
        KAFKA_SECURITY="sasl_plaintext",
        KAFKA_USERNAME="jq",
        KAFKA_PASSWORD_FILE=file,
    )
    assert stream.kafka(by_kafka).security["sasl.password"] == SECRET
    assert security.access(settings(AUTH_JWT_SECRET_FILE=file)).required
    signed = security.access(settings(AUTH_SESSION_SECRET_FILE=file)).sessions
    assert signed.form_token("a", "") == ConsoleSessions(SECRET.encode()).form_token("a", "")


def test_what_clients_show_is_taken_from_files(file: Path) -> None:
    shown = choose_credentials(None, None, None, {"JQ_API_KEY_FILE": str(file)})
    assert shown is not None
    assert shown.api_key == SECRET
    named = {"JQ_REDIS_URL": "redis://r:1/0", "JQ_REDIS_PASSWORD_FILE": str(file)}
    assert choose_redis(named) == f"redis://:{SECRET}@r:1/0"


def test_a_secret_given_twice_is_refused(file: Path) -> None:
    told = settings(DB_URL="postgresql://jq@db/jobs", DB_PASSWORD="x", DB_PASSWORD_FILE=file)
    with pytest.raises(InvalidArgument, match=r"^db\.password_file: give either db\.password or"):
        options.db_url(told)
    with pytest.raises(InvalidArgument, match=r"^JQ_API_KEY_FILE: give either"):
        environment_secret({"JQ_API_KEY": "x", "JQ_API_KEY_FILE": str(file)}, "JQ_API_KEY")


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(InvalidArgument, match=r"^db\.password_file: .*run chmod 600") as refused:
        options.db_url(settings(DB_URL="redis://r:1", DB_PASSWORD_FILE=file))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines\n", b"\xff\xfe", b"a\0b"])
def test_a_file_without_one_line_of_text_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"^x: .*must (be|contain exactly one line of) "):
        read_secret(file, "x")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"^redis\.password_file: .*No such file"):
        security.password(settings(REDIS_PASSWORD_FILE=tmp_path / "no").redis, "redis")
