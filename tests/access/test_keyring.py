"""API keys: read strictly, kept as hashes, never shown."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from jobqueue.access.callers import Role
from jobqueue.access.keyring import Keyring, parse_keys, read_key_file
from jobqueue.core.errors import InvalidArgument

pytestmark = pytest.mark.req("inp:PROD")
KEY = "0123456789abcdef"
HASH = hashlib.sha256(KEY.encode()).hexdigest()


@pytest.mark.parametrize("shape", [KEY, f"sha256={HASH}", f"sha256={HASH.upper()}"])
def test_a_key_is_found_by_itself_or_by_its_hash(shape):
    ring = Keyring(parse_keys([f"ci:client+operator:{shape}"], "auth.api_keys"))
    found = ring.find(KEY)
    assert found is not None
    assert found.name == "ci"
    assert found.roles == frozenset({Role.CLIENT, Role.OPERATOR})
    assert ring.find(KEY + "x") is None
    assert ring.find("") is None
    assert ring.find(HASH) is None


def test_the_key_may_hold_colons():
    ring = Keyring(parse_keys([f"ci:client:{KEY}:{KEY}"], "auth.api_keys"))
    assert ring.find(f"{KEY}:{KEY}") is not None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (KEY, "must be NAME:ROLE+ROLE:KEY"),
        (f"ci:{KEY}", "must be NAME:ROLE+ROLE:KEY"),
        (f":client:{KEY}", "the name must have"),
        (f"a b:client:{KEY}", "the name must have"),
        (f"ci:poet:{KEY}", "unknown role; allowed: client, worker, operator"),
        (f"ci::{KEY}", "unknown role"),
        (f"ci:{KEY}:client", "unknown role"),
        ("ci:client:hunter2", "the key must have 16 or more printable"),
        (f"ci:client:\u00e9{KEY}", "the key must have 16 or more printable"),
        ("ci:client:sha256=abc", "the key must have 64 hexadecimal digits after"),
    ],
)
def test_a_wrong_entry_is_told_by_its_number_and_not_shown(entry, message):
    with pytest.raises(InvalidArgument) as caught:
        parse_keys([f"ok:client:{KEY}", entry], "auth.api_keys")
    assert caught.value.field == "auth.api_keys"
    assert f"entry 2: {message}" in caught.value.message
    assert KEY not in caught.value.message
    assert "hunter2" not in caught.value.message


def test_a_file_has_an_entry_on_a_line(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# callers\n\nci:client:{KEY}\n  ops:operator:sha256={'0' * 64}\n")
    file.chmod(0o600)
    assert [key.name for key in read_key_file(file, "auth.api_keys_file")] == ["ci", "ops"]


@pytest.mark.parametrize(("mode", "refused"), [(0o644, True), (0o660, True), (0o440, False)])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path, mode, refused):
    file = tmp_path / "keys"
    file.write_text(f"ci:client:{KEY}\n")
    file.chmod(mode)
    if not refused:
        assert read_key_file(file, "auth.api_keys_file")
        return
    with pytest.raises(InvalidArgument, match=r"auth.api_keys_file: .*run chmod 600"):
        read_key_file(file, "auth.api_keys_file")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidArgument, match=r"auth.api_keys_file: .*No such file"):
        read_key_file(tmp_path / "nowhere", "auth.api_keys_file")


def test_nothing_shows_a_key(tmp_path):
    keys = parse_keys([f"ci:client:{KEY}"], "auth.api_keys")
    ring = Keyring(keys)
    shown = f"{keys} {ring!r} {ring.find(KEY)!r} {vars(ring)}"
    assert KEY not in shown
    assert HASH not in shown


def test_every_key_is_compared_in_constant_time(monkeypatch):
    compared = []
    original = hmac.compare_digest

    def compare(first: bytes, second: bytes) -> bool:
        compared.append(first)
        return original(first, second)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = Keyring(parse_keys([f"a:client:{KEY}", f"b:client:{KEY}2"], "auth.api_keys"))
    assert ring.find(KEY) is not None
    assert len(compared) == 2
