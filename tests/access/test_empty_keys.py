"""A setting that should hold keys and holds none must not let everybody in."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobqueue import config
from jobqueue.core.errors import InvalidArgument
from jobqueue.server.security import access


def test_a_key_file_without_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    file.chmod(0o600)
    settings = config.load(None, {"JQ_AUTH_API_KEYS_FILE": str(file)}, {}).settings
    with pytest.raises(InvalidArgument, match=r"auth\.api_keys_file: holds no key"):
        access(settings)


def test_a_list_of_nothing_is_refused() -> None:
    settings = config.load(None, {"JQ_AUTH_API_KEYS": " , "}, {}).settings
    with pytest.raises(InvalidArgument, match=r"auth\.api_keys: holds no key"):
        access(settings)


def test_nothing_set_means_no_keys() -> None:
    assert not access(config.load(None, {}, {}).settings).required
