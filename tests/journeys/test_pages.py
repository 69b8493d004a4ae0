"""The commands of the docs work for who has installed the wheel."""

from __future__ import annotations

import re
import shutil

import pytest

from jobqueue.fleet.backing import find_postgres
from tests import ports
from tests.journeys.machine import Machine
from tests.journeys.pages import blocks, shell, write_files
from tests.services.plugin import OwnPostgres
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


@pytest.mark.req("jq:NFR-020")
def test_the_backup_of_the_deployment_page_can_be_restored(
    machine: Machine, own_postgres: OwnPostgres
) -> None:
    postgres = own_postgres()
    programs = find_postgres()
    if programs is None or not (programs / "pg_dump").exists():
        pytest.skip("the client programs of PostgreSQL are not here")
    prelude = f"""
        export DB={postgres.dsn()} RESTORED={postgres.dsn("restored")}
        export PATH=$PATH:{programs}
        jq-server --db-url "$DB" --migrate
        jq-ctl --url "$DB" job submit default '{{"order": 1}}' --type unknown-here
        jq-ctl --url "$DB" job submit default '{{"order": 2}}' --type unknown-here
    """
    (commands,) = blocks("docs/deployment.md", "sh")
    printed = shell(machine, prelude, commands)
    assert re.search(r"^PENDING:\s+2$", printed, re.MULTILINE), printed


def test_the_clusters_of_the_deployment_page(machine: Machine) -> None:
    """Each on a file here, in place of servers."""
    (program,) = blocks("docs/deployment.md", "python")
    for name in ("orders", "mail"):
        program = re.sub(rf'"grpc://{name}[^"]*"', f'"sqlite:///{name}.db"', program)
    machine.write("clusters.py", program)
    assert "thank you for order 42" in machine.succeed("python", "clusters.py")
