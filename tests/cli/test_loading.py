"""What programs load before they can work: a server that was killed is back the sooner."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = "import sys, jobqueue.cli.{program}, {parts}; print(*{unwanted} & sys.modules.keys())"


@pytest.mark.parametrize(
    ("program", "parts"),
    [("worker", "jobqueue.server.worker"), ("server", "jobqueue.server.process")],
)
def test_workers_and_grpc_do_not_wait_for_what_http_needs(program, parts):
    code = CODE.format(program=program, parts=parts, unwanted={"fastapi", "uvicorn"})
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "\n", "")
