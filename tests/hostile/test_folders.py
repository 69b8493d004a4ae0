"""A folder that somebody else prepared decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobqueue.core.errors import Unavailable
from jobqueue.topology.backing import account
from jobqueue.topology.backing.redis import PrivateRedis
from jobqueue.topology.supervisor.folders import Claim
from tests.services.places import new_folder

SOMEBODY = 12_345


def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path):
    folder = tmp_path / "fleet"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Unavailable, match="may write there"):
        Claim(folder)
    assert list(folder.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "fleet"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, SOMEBODY, SOMEBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    with pytest.raises(Unavailable, match="another user owns it"):
        Claim(folder)
    assert list(folder.iterdir()) == []


def test_nobody_else_may_write_beside_the_password_of_a_private_server(
    monkeypatch: pytest.MonkeyPatch,
):
    """Also where we are not root, who gives the folder a mode of its own anyway."""
    monkeypatch.setattr(account, "is_root", lambda: False)
    with new_folder() as folder:
        server = PrivateRedis(folder / "made" / "redis")
        before = os.umask(0)
        try:
            server.start()
            server.stop()
        finally:
            os.umask(before)
        assert server.folder.stat().st_mode & 0o022 == 0
        assert server.folder.parent.stat().st_mode & 0o022 == 0
        server.folder.chmod(0o777)
        server.start()
        server.stop()
        assert server.folder.stat().st_mode & 0o022 == 0
