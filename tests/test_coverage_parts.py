"""tests/plugin_coverage.py: who is counted, in a run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience

ROOT = Path(__file__).parent.parent
SETTINGS = '[tool.coverage.run]\nsource_pkgs = ["jobqueue.core", "jobqueue.config"]\n'
TEST = "import sys\ndef test_it(): assert (sys.gettrace() is not None) is {}\n"


@pytest.mark.parametrize(
    ("options", "others"),
    [
        pytest.param(("--cov", "-n", "0"), False, id="one process"),
        pytest.param(("--cov", "-n", "1"), False, id="xdist"),
        pytest.param(("--cov=jobqueue.core", "-n", "0"), True, id="parts that are named"),
    ],
)
def test_only_tests_of_the_parts_are_counted(
    tmp_path: Path, options: tuple[str, ...], others: bool
) -> None:
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    for file, counted in {
        "api/test_before.py": others,
        "core/test_part.py": True,
        "core_more/test_between.py": others,
        "test_config.py": True,
        "test_last.py": others,
    }.items():
        path = tmp_path / "tests" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEST.format(counted))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cov-report="),
            *("-p", "tests.plugin_coverage", "-p", "no:asyncio", *options, "tests"),
        ],
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "COVERAGE_FILE": str(tmp_path / ".coverage"),
        },
        capture_output=True,
        text=True,
        timeout=patience.longest(50),
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr
