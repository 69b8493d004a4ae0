"""jq-server --migrate: the schema alone, for a job that runs before the servers."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from jobqueue.stores.postgres.migrate import migrations
from tests.cli import processes

NOWHERE = "postgresql://jq@127.0.0.1:1/jobs"


@pytest.mark.req("jq:NFR-020")
async def test_the_schema_is_brought_up_to_date_and_nothing_else_is_done(
    tmp_path: Path, empty_postgres_dsn: str
) -> None:
    for _ in range(2):
        # A server would not start like this: everybody could call it.
        done = processes.run(
            *("server", "--migrate"),
            cwd=tmp_path,
            JQ_DB_URL=empty_postgres_dsn,
            JQ_HTTP_HOST="0.0.0.0",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "is up to date" in done.stdout
        assert empty_postgres_dsn not in done.stdout  # it holds the password
    connection = await asyncpg.connect(empty_postgres_dsn)
    applied = await connection.fetch("SELECT version FROM schema_history ORDER BY version")
    await connection.close()
    assert [row["version"] for row in applied] == [one.version for one in migrations()]


def test_an_operator_sees_raises_and_lowers_the_layout(tmp_path: Path, postgres_dsn: str) -> None:
    def layout(*args: str, url: str = postgres_dsn) -> tuple[int, str]:
        done = processes.run("ctl", "--url", url, "layout", *args, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    assert layout() == (0, "layout 3\n")
    assert layout("1") == (0, "layout 1\n")
    assert layout("--output", "json") == (0, '{"layout": 1}\n')
    assert layout("2") == (0, "layout 2\n")
    assert layout("3") == (0, "layout 3\n")
    code, said = layout("7")
    assert code == 2
    assert "must be from 1 to 3" in said
    code, said = layout(url="sqlite:///jobs.db")
    assert code == 2
    assert "no other store has layouts" in said


def test_a_store_that_is_away_is_a_failure(tmp_path: Path) -> None:
    done = processes.run(
        "server", "--migrate", cwd=tmp_path, JQ_DB_URL=NOWHERE, JQ_DB_START_TIMEOUT="0"
    )
    assert done.returncode == 6
    assert "127.0.0.1:1" in done.stdout


def test_a_stop_before_it_was_done_is_a_failure(tmp_path: Path) -> None:
    """Else a cluster would take it for done."""
    with processes.Service("server", "--migrate", cwd=tmp_path, JQ_DB_URL=NOWHERE) as migrating:
        migrating.line("cannot reach")
        assert migrating.stop() == 6
        assert migrating.line("the migration was stopped before the schema was up to date")
