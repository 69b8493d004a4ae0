"""The private engine itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.containers.engine_images import docker
from tests.services.catalog import ENGINE
from tests.services.engine import PrivateEngine
from tests.services.places import end_all
from tests.services.plugin import run_of


def test_an_engine_ends_and_leaves_nothing(request) -> None:
    run_of(request.config).need(ENGINE.name)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "run")
        server = PrivateEngine(folder / ENGINE.name)
        try:
            server.start()
            pid = server.pid
            assert docker(server.host, "images", "--quiet") == ""
        finally:
            end_all(folder)
        assert not folder.exists()
        assert not Path(f"/proc/{pid}/cwd").exists()
        assert str(folder) not in Path("/proc/self/mounts").read_text()
        commands = (process / "cmdline" for process in Path("/proc").glob("[0-9]*"))
        assert not any(str(folder).encode() in _read(command) for command in commands)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
