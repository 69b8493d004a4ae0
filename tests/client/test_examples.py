"""Every example runs, and says what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import patience

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = {
    "quickstart": ["submitted ", "'subject': 'hello'", "1. PENDING (SUBMITTED)", "4. DONE"],
    "sync_script": ["one: 6", "many: [3, 0, 2]", "processed: 4"],
    "retries_and_dead_letters": [
        "done at attempt 3",
        "failed: NOT_RETRYABLE - Abort: there is no account 'alice'",
        'dead letter: charge {"account":"alice"}',
        "charged alice",
    ],
    "cpu_process": [
        "9592 primes in a process of its own",
        "17984 primes in a process of its own",
        "killed: ",
    ],
    "delayed_and_idempotent": [
        "stretch your legs - after 0.",
        "waiting: PENDING",
        "one job: True - made by the second call: False",
        "refused: KEY_CONFLICT",
        "order 42: 999 cents",
    ],
    "periodic": ["clean_up ran\nthe minute report ran"],
}

# What the log says on stderr, where an example shows failures.
LOGGED = {
    "retries_and_dead_letters": [
        "attempt 2 of flaky ",
        "it will be retried in 0.05 s (2 retries left): RetryLater: upstream is busy",
        "it is a dead letter now (not retryable): Abort: there is no account 'alice'",
    ],
    "cpu_process": ["timed out after "],
}


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_every_example_is_known() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    worker = None
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    if name == "sync_script":
        worker = subprocess.Popen([*command, "worker"], cwd=tmp_path, env=environment())
    try:
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=patience.longest(50),
        )
    finally:
        if worker is not None:
            worker.terminate()
            assert worker.wait(patience.longest(20)) == 0
    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
    assert bool(ran.stderr) == (name in LOGGED), ran.stderr
    for line in LOGGED.get(name, ()):
        assert line in ran.stderr
    for line in EXPECTED[name]:
        assert line in ran.stdout
