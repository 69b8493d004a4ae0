"""An outage of PostgreSQL, as an operator sees it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests import patience
from tests.hanging import hung
from tests.journeys.machine import Machine
from tests.programs import Program

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]  # perhaps after pip

# A probe waits one second by default. The server is asked until its answer came so quickly, so
# that a busy machine makes the test slower and not wrong.
PROBE_SECONDS = 1.0
NOT_WELL = 6  # exit status of jq-ctl: something is unavailable


def server(machine: Machine, dsn: str) -> Program:
    return machine.start("jq-server", "--http-port", "0", "--grpc-port", "0", JQ_DB_URL=dsn)


def ready(program: Program) -> dict[str, Any]:
    return json.loads(program.line_with('"ready: '))


def probe(url: str) -> tuple[int, str]:
    """As a kubelet asks: status and body."""
    try:
        with urllib.request.urlopen(url, timeout=PROBE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:  # no answer within the probe's time
        return 0, str(error)


def assert_an_outage_is_seen(machine: Machine, at: dict[str, Any], port: int) -> None:
    seen: list[tuple[int, str]] = []

    def not_ready() -> bool:
        seen.append(probe(f"{at['http']}/readyz"))
        status, body = seen[-1]
        return status == 503 and f"PostgreSQL at 127.0.0.1:{port}" in body

    patience.until(not_ready, f"/readyz did not name PostgreSQL: {seen[-3:]}")
    patience.until(lambda: probe(f"{at['http']}/healthz") == (200, "ok\n"), "/healthz")

    shown = machine.run("jq-ctl", "--server", at["grpc"], "status")
    assert shown.returncode == NOT_WELL, shown
    fields = dict(line.split(": ", 1) for line in shown.stdout.splitlines() if ": " in line)
    assert fields["Server"].strip() == "failing"
    assert fields["DB"].strip().startswith(f"failing (PostgreSQL at 127.0.0.1:{port}: ")
    assert fields["Queues"].strip().startswith("not known")
    assert "Traceback" not in shown.stderr


def assert_all_is_well(machine: Machine, at: dict[str, Any]) -> None:
    patience.until(lambda: probe(f"{at['http']}/readyz")[0] == 200, "/readyz did not recover")
    status = ("jq-ctl", "--server", at["grpc"], "status")
    patience.until(lambda: machine.run(*status).returncode == 0, "jq-ctl status did not recover")
    shown = machine.succeed(*status)
    assert "DB:             ok (postgresql" in shown
    assert "default" in shown


def test_an_outage_is_seen_and_passes(machine: Machine, own_postgres) -> None:
    postgres = own_postgres()
    program = server(machine, postgres.dsn())
    at = ready(program)
    assert_all_is_well(machine, at)

    postgres.stop()
    assert_an_outage_is_seen(machine, at, postgres.port)
    postgres.restart()
    assert_all_is_well(machine, at)

    with hung(postgres.pid):
        assert_an_outage_is_seen(machine, at, postgres.port)
    assert_all_is_well(machine, at)

    submit = ("jq-ctl", "--server", at["grpc"], "job", "submit", "default", '"hello"')
    patience.until(lambda: machine.run(*submit).returncode == 0, "no job is accepted again")
    assert program.stop() == 0
    assert "Traceback" not in program.text


def test_a_server_that_is_started_before_postgresql_waits_for_it(
    machine: Machine, own_postgres
) -> None:
    postgres = own_postgres()
    dsn, port = postgres.dsn(), postgres.port
    postgres.stop()
    program = server(machine, dsn)
    said = json.loads(program.line_with("cannot reach"))
    assert said["level"] == "WARNING"
    assert said["message"].startswith(f"cannot reach PostgreSQL at 127.0.0.1:{port}: ")
    assert "trying again in" in said["message"]
    postgres.restart()
    assert_all_is_well(machine, ready(program))
    assert program.stop() == 0
    assert "Traceback" not in program.text
