"""Files with secrets or jobs in them, and another user of the machine."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobqueue import config, logs
from jobqueue.access.keyring import read_key_file
from jobqueue.access.public_keys import KeyFile
from jobqueue.access.tls import Credentials, ServerTls, Tls
from jobqueue.connect.backends import create_store
from jobqueue.core.clock import MonotonicClock
from jobqueue.core.errors import InvalidArgument
from jobqueue.core.queue import Queue
from jobqueue.stores.sqlite.store import SqliteStore
from tests.access.certificates import Authority, Pair
from tests.access.jwt import Issuer
from tests.cli import processes
from tests.stores.driver import accept

SOMEBODY = 12_345


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """That of most accounts: what it leaves open is open."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_the_files_of_a_new_sqlite_store_are_for_their_owner_only(tmp_path: Path) -> None:
    store = create_store(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        await accept(store)
        found = modes(tmp_path)
        assert found.keys() == {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
        assert set(found.values()) == {0o600}
    finally:
        await store.close()


async def test_a_link_to_a_file_that_is_not_there_yet_makes_no_open_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "jobs.db")
    store = SqliteStore(tmp_path / "link")
    await store.open()
    await store.close()
    assert modes(tmp_path)["jobs.db"] == 0o600


async def test_an_sqlite_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """Its owner may have opened it for a group."""
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    await store.close()
    (tmp_path / "jobs.db").chmod(0o640)
    await store.open()
    try:
        await store.queues.create(Queue(name="q"))
        assert set(modes(tmp_path).values()) == {0o640}
    finally:
        await store.close()


# -- the key of a certificate -------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server", "IP:127.0.0.1,DNS:localhost")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602, 0o601])
def test_a_key_that_others_may_read_or_change_is_refused(pair: Pair, mode: int) -> None:
    pair.key.chmod(mode)
    for check in (
        ServerTls(pair.cert, pair.key).check,
        Credentials(tls=Tls(cert=pair.cert, key=pair.key)).check,
    ):
        with pytest.raises(InvalidArgument, match=r"tls.key: .*others may .*chmod 600") as refused:
            check()
        assert refused.value.field == "tls.key"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_key_that_its_group_may_read_is_taken(pair: Pair, mode: int) -> None:
    """As Kubernetes mounts a secret for a pod with a group of its own (fsGroup)."""
    pair.key.chmod(mode)
    ServerTls(pair.cert, pair.key).check()
    Credentials(tls=Tls(cert=pair.cert, key=pair.key)).check()


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        (("server", "--dry-run"), {"JQ_TLS_CERT": "cert", "JQ_TLS_KEY": "key"}),
        (("worker",), {"JQ_TLS_CERT": "cert", "JQ_TLS_KEY": "key"}),
        (("service", "job"), {"TLS_CERT": "cert", "TLS_KEY": "key", "TLS_CA": "ca"}),
    ],
)
def test_no_program_starts_with_a_key_that_others_may_read(
    tmp_path: Path,
    authority: Authority,
    pair: Pair,
    program: tuple[str, ...],
    variables: dict[str, str],
) -> None:
    pair.key.chmod(0o644)
    files = {"cert": pair.cert, "key": pair.key, "ca": authority.ca}
    told = {name: str(files[file]) for name, file in variables.items()}
    done = processes.run(*program, cwd=tmp_path, timeout=30.0, **told)
    assert done.returncode in (1, 2)
    said = done.stdout + done.stderr
    assert "others may read or change it (mode 644); run chmod 600" in said


# -- files that decide who is let in ------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_an_authority_that_others_may_change_is_refused(
    authority: Authority, pair: Pair, mode: int
) -> None:
    """They would put in their own, and be any caller, or the server."""
    pair.key.chmod(0o600)
    authority.ca.chmod(mode)
    try:
        said = rf"others may change it \(mode {mode:o}\); run chmod go-w"
        with pytest.raises(InvalidArgument, match=rf"tls.client_ca: .*{said}"):
            ServerTls(pair.cert, pair.key, authority.ca).check()
        with pytest.raises(InvalidArgument, match=rf"tls.ca: .*{said}"):
            Credentials(tls=Tls(ca=authority.ca)).check()
    finally:
        authority.ca.chmod(0o644)
    ServerTls(pair.cert, pair.key, authority.ca).check()
    Credentials(tls=Tls(ca=authority.ca)).check()


def give_away(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it look to root like the file of another user."""
    if os.geteuid() == 0:
        os.chown(file, SOMEBODY, SOMEBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.parametrize("name", ["tls.key", "tls.client_ca", "api_keys_file", "jwt_keys_file"])
def test_root_takes_no_keys_from_the_file_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "IP:127.0.0.1,DNS:localhost")
    keys, issuers = tmp_path / "keys", tmp_path / "issuers.pem"
    keys.write_text(f"ops:operator:sha256={'0' * 64}\n")
    keys.chmod(0o600)
    issuers.write_bytes(Issuer("EdDSA").pem())
    issuers.chmod(0o644)
    file, check = {
        "tls.key": (pair.key, ServerTls(pair.cert, pair.key).check),
        "tls.client_ca": (authority.ca, ServerTls(pair.cert, pair.key, authority.ca).check),
        "api_keys_file": (keys, lambda: read_key_file(keys, "auth.api_keys_file")),
        "jwt_keys_file": (
            issuers,
            lambda: KeyFile(issuers, "auth.jwt_keys_file", MonotonicClock()),
        ),
    }[name]
    if os.geteuid() == 0:
        check()
    give_away(file, monkeypatch)
    with pytest.raises(InvalidArgument, match=rf"{name}: .*belongs to user \d+.*run chown root"):
        check()


@pytest.mark.parametrize("name", ["api_keys_file", "jwt_keys_file"])
def test_keys_are_read_from_the_file_that_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another user who may rename files there exchanges it as soon as it has been looked at."""
    good, open_to_all = tmp_path / "good", tmp_path / "open"
    for file, mode in ((good, 0o600), (open_to_all, 0o666)):
        if name == "api_keys_file":
            file.write_text(f"{file.name}:operator:sha256={'0' * 64}\n")
        else:
            file.write_bytes(Issuer("EdDSA").pem())
        file.chmod(mode)
    seen = Path.stat

    def exchange(file: Path, **given: bool) -> os.stat_result:
        found = seen(file, **given)
        if file == good and os.path.exists(open_to_all):
            open_to_all.rename(good)
        return found

    monkeypatch.setattr(Path, "stat", exchange)
    if name == "api_keys_file":
        assert [key.name for key in read_key_file(good, "auth.api_keys_file")] == ["good"]
    else:
        with pytest.raises(InvalidArgument, match=r"others may change it \(mode 666\)"):
            KeyFile(good, "auth.jwt_keys_file", MonotonicClock())


@pytest.mark.parametrize("name", ["tls.key", "tls.client_ca"])
@pytest.mark.parametrize("face", ["grpc", "http"])
def test_keys_and_authorities_of_tls_are_read_from_the_file_that_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, face: str
) -> None:
    """Before, another file was read than the one that was looked at."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", "IP:127.0.0.1,DNS:localhost")
    file = pair.key if name == "tls.key" else authority.ca
    right = file.read_bytes()
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"-----BEGIN NOTHING-----")
    wrong.chmod(0o666)
    tls = ServerTls(pair.cert, pair.key, authority.ca)

    def exchange_after(looked: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def look(at: Any, *args: Any, **given: Any) -> os.stat_result:
            found = looked(at, *args, **given)
            if found.st_ino == inode and wrong.exists():
                wrong.rename(file)
            return found

        return look

    inode = file.stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", exchange_after(os.fstat))
        patched.setattr(Path, "stat", exchange_after(Path.stat))
        if face == "grpc":
            _, key, client_ca = tls.read()
            assert (key if name == "tls.key" else client_ca) == right
        else:
            context = tls.context()
            assert len(context.get_ca_certs()) == 1
    assert file.read_bytes() != right
    with pytest.raises(InvalidArgument, match=rf"{name}: .*others may .*\(mode 666\)"):
        tls.check()


def test_keys_may_come_through_a_pipe() -> None:
    """So a program that knows them can hand them over: ``auth.api_keys_file=<(program)``."""
    ours, theirs = os.pipe()
    with open(ours, "rb"):
        with open(theirs, "w") as stream:
            print(f"ops:operator:sha256={'0' * 64}", file=stream)
        (key,) = read_key_file(Path(f"/dev/fd/{ours}"), "auth.api_keys_file")
    assert key.name == "ops"


@pytest.fixture
def audit_log() -> Iterator[logging.Logger]:
    yield logging.getLogger(logs.AUDIT)
    logs.configure("test", "info", "text")  # its file is closed


def test_the_audit_log_does_not_go_to_the_file_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audit_log: logging.Logger
) -> None:
    """They would read it, and write it anew."""
    file = tmp_path / "audit.log"
    file.touch(0o600)
    logs.check_audit_file(str(file))
    give_away(file, monkeypatch)
    said = r"log.audit_file: .*audit.log: belongs to user \d+; must belong to user 0"
    with pytest.raises(InvalidArgument, match=said):
        logs.check_audit_file(str(file))
    with pytest.raises(InvalidArgument, match=said):
        logs.configure("jq-server", audit_file=str(file))
    assert file.read_text() == ""


def test_a_file_of_somebody_else_in_place_of_the_audit_log_gets_no_line_and_stops_no_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    audit_log: logging.Logger,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "audit.log"
    logs.configure("jq-server", audit_file=str(file))
    file.rename(tmp_path / "audit.log.1")
    file.touch(0o600)
    give_away(file, monkeypatch)
    audit_log.info("queue.pause: OK")
    assert file.read_text() == ""
    assert "belongs to user" in capsys.readouterr().err
    file.unlink()
    monkeypatch.undo()
    audit_log.info("queue.resume: OK")
    assert "queue.resume" in file.read_text()


@pytest.fixture(params=[False, True], ids=["nobody-reads", "somebody-reads"])
def pipe(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """One that may be put in the place of a file."""
    made = tmp_path / "pipe"
    os.mkfifo(made, 0o600)
    reader = os.open(made, os.O_RDONLY | os.O_NONBLOCK) if request.param else None
    yield made
    if reader is not None:
        os.close(reader)


def test_the_audit_log_does_not_go_to_a_pipe(pipe: Path, audit_log: logging.Logger) -> None:
    said = "log.audit_file: .*(is not a regular file|No such device or address)"
    with pytest.raises(InvalidArgument, match=said):
        logs.check_audit_file(str(pipe))
    with pytest.raises(InvalidArgument, match=said):
        logs.configure("jq-server", audit_file=str(pipe))


def test_a_pipe_in_place_of_the_audit_log_gets_no_line_and_stops_no_call(
    tmp_path: Path, pipe: Path, audit_log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "audit.log"
    logs.configure("jq-server", audit_file=str(file))
    file.rename(tmp_path / "audit.log.1")
    pipe.rename(file)
    audit_log.info("queue.pause: OK")
    told = capsys.readouterr().err
    assert "is not a regular file" in told or "No such device or address" in told
    file.unlink()
    audit_log.info("queue.resume: OK")
    assert "queue.resume" in file.read_text()


def test_a_config_file_that_everybody_may_change_is_warned_of(tmp_path: Path) -> None:
    """They could let themselves in with it."""
    file = tmp_path / "jq.yaml"
    file.write_text("log:\n  level: info\n")
    file.chmod(0o664)
    assert config.load(file).warnings == []
    file.chmod(0o666)
    (warning,) = config.load(file).warnings
    assert warning.startswith(f"{file}: everybody may change this file (mode 666), and so decide")
