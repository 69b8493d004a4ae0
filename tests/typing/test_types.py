"""A regression of the SDK's types shows here rather than at a user's desk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"


def check(file: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *("--python-version=3.11", "--follow-imports=silent", "--ignore-missing-imports"),
            f"--cache-dir={cache}",
            file.name,
        ],
        cwd=file.parent,
        env={"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=patience.longest(170),
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_types_promise_what_the_file_says(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    cached = getattr(pytestconfig, "cache", None)  # absent where the plugin is switched off
    cache = cached.mkdir("sdk-types") if cached else tmp_path
    checked = check(HERE / "sdk_types.py", Path(cache))
    assert checked.stdout + checked.stderr == ""
    # The same file without its marks: every one of them stands for an error that is found.
    marked = (HERE / "sdk_types.py").read_text().splitlines()
    bare = tmp_path / "unmarked.py"
    bare.write_text("\n".join(line.partition("  # type: ignore")[0] for line in marked))
    found = check(bare, Path(cache)).stdout
    lines = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}
    assert lines == {n for n, line in enumerate(marked, 1) if "# type: ignore[" in line}
