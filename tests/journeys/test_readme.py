"""The README, and the pages that it leads to first, are true for who has installed the wheel."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell, write_files

# For each Python block of a page, a part of what it prints.
PRINTED = {
    "README.md": ["'subject': 'hello'"],
    "docs/tasks.md": [
        "fetched at attempt 2\nNOT_RETRYABLE Abort: only https\n['PENDING', 'ASSIGNED', 'RUNNING'",
        "PENDING\n['default', 'mail']",
        "",
    ],
    "docs/periodic.md": ["older than 30 days: gone"],
}


@pytest.mark.parametrize("page", PRINTED)
def test_every_python_block_has_an_expectation(page: str) -> None:
    assert len(blocks(page, "python")) == len(PRINTED[page])


@pytest.mark.parametrize(
    ("page", "number"), [(page, n) for page, parts in PRINTED.items() for n in range(len(parts))]
)
def test_a_python_block_runs(page: str, number: int, machine: Machine) -> None:
    write_files(machine)
    machine.write("block.py", blocks(page, "python")[number])
    assert PRINTED[page][number] in machine.succeed("python", "block.py")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_shell_blocks_work_in_order(machine: Machine) -> None:
    write_files(machine)
    server = machine.start("jq-server", "--http-port", "0", "--grpc-port", "0")
    ready = json.loads(server.line_with('"ready: '))
    prelude = f"""
        export JQ_WORKER_METRICS_PORT=0
        jq-ctl() {{ command jq-ctl --server {ready["grpc"]} "$@"; }}
    """
    outputs = []
    for text in blocks("README.md", "sh") + blocks("docs/taskqueue.md", "sh"):
        text = text.replace("localhost:8080", ready["http"].removeprefix("http://"))
        text = text.replace("127.0.0.1:50051", ready["grpc"])
        outputs.append(shell(machine, prelude, text))
    print(*outputs, sep="\n")
    fleet, over_http, in_shell, workers, designs = outputs
    assert '"job_id"' in over_http
    assert "DONE" in in_shell
    assert "SUCCEEDED" in in_shell
    assert '"to": "a@b.c"' in workers
    assert "worker stopped" in workers
    assert "embedded is up" in fleet
    assert "is down (it was up)" in fleet
    assert designs == "DONE\n"
    assert server.stop() == 0
