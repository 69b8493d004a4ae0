"""The README is true: its programs run, its commands work against a server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import patience, ports

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"jq-server": "server", "jq-worker": "worker", "jq-ctl": "ctl"}
START_SECONDS = 30


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(README) if found == language]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with the README's files and the programs of this checkout."""
    for text in blocks("python"):
        if named := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / named[1]).write_text(text)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in PROGRAMS.items():
        code = f"from jobqueue.cli.{module} import main; main()"
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    return tmp_path


def environment(desk: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    return kept | {
        "PATH": f"{desk / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(desk), *sys.path]),
        "NO_COLOR": "1",
    }


def run(command: list[str], desk: Path) -> str:
    ran = subprocess.run(
        command,
        cwd=desk,
        env=environment(desk),
        capture_output=True,
        text=True,
        timeout=patience.longest(50),
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    assert "Traceback" not in ran.stderr
    return ran.stdout


def test_the_first_program_is_seen_at_once() -> None:
    first = README.index("```python")
    end = README.index("```", first + 3)
    assert len(README[first:end].splitlines()) - 1 <= 30
    assert README[:first].count("\n") < 10


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_python_block_runs(number: int, desk: Path) -> None:
    script = desk / "block.py"
    script.write_text(blocks("python")[number])
    said = run([sys.executable, str(script)], desk)
    expected = [
        "'subject': 'hello'",
        "fetched at attempt 2\nNOT_RETRYABLE Abort: only https\n['PENDING', 'ASSIGNED', 'RUNNING'",
        "older than 30 days: gone",
        "PENDING\n['default', 'mail']",
        "",
    ]
    assert expected[number] in said


@pytest.fixture
def server(desk: Path) -> Iterator[tuple[int, int]]:
    http, grpc = ports.take(), ports.take()
    with (desk / "server.log").open("w") as log:
        process = subprocess.Popen(
            ["jq-server", "--http-port", str(http), "--grpc-port", str(grpc)],
            cwd=desk,
            env=environment(desk),
            stdout=log,
            stderr=log,
        )
    try:
        _wait_until_ready(process, http, desk / "server.log")
        yield http, grpc
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(patience.longest(40))


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    limit = patience.Limit(START_SECONDS)
    while not limit.over:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail(f"the server is not ready:\n{log.read_text()}")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_shell_blocks_work_in_order(desk: Path, server: tuple[int, int]) -> None:
    http, grpc = server
    outputs = []
    for text in blocks("sh"):
        text = text.replace("localhost:8080", f"127.0.0.1:{http}")
        text = text.replace("127.0.0.1:50051", f"127.0.0.1:{grpc}")
        prelude = f"""
            set -euo pipefail
            export JQ_WORKER_METRICS_PORT=0
            jq-ctl() {{ command jq-ctl --server 127.0.0.1:{grpc} "$@"; }}
        """
        outputs.append(run(["bash", "-c", textwrap.dedent(prelude) + text], desk))
    print(*outputs, sep="\n")
    over_http, shell, workers, fleet, designs = outputs
    assert '"job_id"' in over_http
    assert "DONE" in shell
    assert "SUCCEEDED" in shell
    assert '"to": "a@b.c"' in workers
    assert "worker stopped" in workers
    assert "embedded is up" in fleet
    assert "is down (it was up)" in fleet
    assert designs == "DONE\n"


def test_the_commands_it_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks("text")), re.MULTILINE))
    assert named == {"run", "test"}
    assert named | {"demo", "bench"} <= targets


def test_the_files_it_links_to_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert missing == []
