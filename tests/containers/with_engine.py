"""Runs a command with a container engine that has our images: ``DOCKER_HOST`` names it.

    python -m tests.containers.with_engine jq-bench run parity --place containers

The engine is that of JQ_TEST_DOCKER_HOST or DOCKER_HOST, else the system's. Where none answers, a
private one is started, which ends with the command: root, scripts/services ensure kafka containers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tests.containers import engine_images
from tests.services.catalog import ENGINE
from tests.services.engine import PrivateEngine
from tests.services.places import end_all


def main(command: Sequence[str]) -> int:
    """Returns the command's exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    with _engine() as host:
        _say("building the image that is measured")
        engine_images.build_ours(host, "taskqueue")
        return subprocess.run(
            command, env={**os.environ, "DOCKER_HOST": host}, check=False
        ).returncode


@contextmanager
def _engine() -> Iterator[str]:
    named = os.environ.get(ENGINE.variable) or os.environ.get("DOCKER_HOST", "")
    if _answers(named):
        yield named
        return
    if named or ENGINE.find() is None:
        sys.exit(f"with_engine: no container engine answers; {ENGINE.how_to_get}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "run")
        _say("starting a private container engine")
        server = PrivateEngine(folder / ENGINE.name)
        try:
            server.start()
            engine_images.fill(server.host)
            yield server.host
        finally:
            end_all(folder)


def _answers(host: str) -> bool:
    told = {"DOCKER_HOST": host} if host else {}
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, check=False)
    return done.returncode == 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(message: str) -> None:
    print(f"with_engine: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
