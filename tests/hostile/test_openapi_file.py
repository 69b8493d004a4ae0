"""The served description of the HTTP API is true: schemathesis asks what it says may be asked.

No answer is a 500, no request that fits the schema is refused for a reason that the schema does not
state, and no answer has a status that is not listed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience
from tests.cli.processes import server as start_server

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).parent / "schemathesis.toml"
SECONDS = 300
# GET and DELETE of /jobs/batch are those of /jobs/{job_id}: 400, "batch" is not a UUID.
NOT_ASKED = "unsupported_method"


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_the_description_is_true(tmp_path: Path) -> None:
    flags = ("--db-url", "memory://", "--worker-concurrency", "0")
    with start_server(tmp_path, *flags) as service:
        url = service.line("ready")["http"]
        program = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG)]
        ran = subprocess.run(
            [
                *program,
                "run",
                f"{url}/openapi.json",
                "--checks",
                "all",
                "--exclude-checks",
                NOT_ASKED,
                "--no-color",
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=patience.longest(SECONDS),
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert service.stop() == 0
