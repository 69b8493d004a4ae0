"""When the store is away: the caller is told, and nothing has to be started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import processes
from tests.e2e.conftest import Ctl
from tests.services.plugin import OwnPostgres

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


@pytest.mark.req("jq:NFR-005", "jq:NFR-009", "jq:NFR-014", "jq:NFR-020")
def test_a_job_that_cannot_be_kept_is_not_accepted(
    own_postgres: OwnPostgres, tmp_path: Path
) -> None:
    postgres = own_postgres()
    pool = ("--set", "worker.concurrency=2")
    with processes.server(tmp_path, *pool, JQ_DB_URL=postgres.dsn()) as server:
        ctl = Ctl([server.line("ready")["grpc"]], tmp_path)
        postgres.stop("immediate")
        refused = ctl("--timeout", "5", "job", "submit", "default", "1")
        assert refused.returncode != 0
        assert refused.stdout == ""
        assert "Traceback" not in refused.stderr
        postgres.restart()
        job_id, result = ctl.ok("job", "submit", "default", '"kept"', "--wait").split()
        assert result == '"kept"'
        listed = ctl.json("job", "list")["jobs"]
        assert [(job["job_id"], job["status"]) for job in listed] == [(job_id, "DONE")]
        server.signal(15)
        assert server.wait(30) == 0
