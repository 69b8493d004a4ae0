"""The commands of the docs work for who has installed the wheel."""

from __future__ import annotations

import shutil

import pytest

from tests import ports
from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell, write_files
from tests.services.run import Run


@pytest.mark.integration
@pytest.mark.parametrize("number", [0, 1])
def test_the_commands_of_the_topologies_page_work(
    number: int, machine: Machine, services: Run
) -> None:
    for name in ("postgres", "redis"):
        services.own(name, {})  # skips or fails where the programs are missing
    found = blocks("docs/topologies.md", "sh")
    assert len(found) == 2
    write_files(machine)
    http, grpc = str(ports.take()), str(ports.take())
    text = found[number].replace("8080", http).replace("50051", grpc)
    # The second block names the server itself.
    prelude = (
        f'jq-ctl() {{ command jq-ctl --server 127.0.0.1:{grpc} "$@"; }}' if number == 0 else ""
    )
    printed = shell(machine, prelude, text)
    assert "is up (" in printed
    assert ("world", '"to": "a@b.c"')[number] in printed
    assert "is down (it was up)" in printed


@pytest.mark.req("jq:FR-047", "jq:FR-048")
@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("openssl"), reason="needs both")
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, ['"UNAUTHENTICATED"', '"hello"']),
        (1, ['"PERMISSION_DENIED"', '"signed"']),
        (2, ["over mTLS"]),
    ],
)
def test_the_commands_of_the_security_page_work(
    number: int, expected: list[str], machine: Machine
) -> None:
    found = blocks("docs/security.md", "sh")
    assert len(found) == 3
    write_files(machine)
    text = found[number].replace("8080", str(ports.take())).replace("50051", str(ports.take()))
    prelude = """
        export JQ_WORKER_METRICS_PORT=0
        trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
    """
    printed = shell(machine, prelude, text)
    for words in [*expected, '"components"']:
        assert words in printed
