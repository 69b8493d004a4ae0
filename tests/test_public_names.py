"""The public names, so that adding or losing one is a decision."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import jobqueue

NAMES = [
    "Abort",
    "Backoff",
    "Breaker",
    "Context",
    "DeadlineExceeded",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobQueue",
    "JobQueueError",
    "NotUnique",
    "QueueFull",
    "QueueSpec",
    "RateLimited",
    "RetryLater",
    "State",
    "SyncTaskQueueClient",
    "Task",
    "TaskQueueClient",
    "Tls",
    "Unique",
    "__version__",
]


def test_the_public_names() -> None:
    assert sorted(jobqueue.__all__) == NAMES
    assert all(hasattr(jobqueue, name) for name in NAMES)
    assert set(NAMES) <= set(dir(jobqueue))


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'jobqueue' has no attribute 'JobQueu'"):
        jobqueue.JobQueu  # type: ignore[attr-defined]  # noqa: B018


def loaded(code: str, *modules: str) -> list[str]:
    """Which of the modules are loaded when a new process has run this."""
    told = f"import sys; {code}; print([m for m in {modules} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return list(ast.literal_eval(ran.stdout))


def test_importing_all_names_loads_no_server_and_no_database_client() -> None:
    heavy = ["grpc", "fastapi", "uvicorn", "typer", "rich", "yaml", "asyncpg", "redis", "sqlite3"]
    assert loaded("from jobqueue import *", "jobqueue.client.app", *heavy) == [
        "jobqueue.client.app"
    ]


def test_jq_ctl_starts_without_what_only_other_programs_need() -> None:
    """The settings and the supervisor double its time to start; `up`, `ps` and `down` pay that."""
    others = ["pydantic", "fastapi", "jobqueue.config", "jobqueue.fleet.supervisor"]
    others += ["jobqueue.client.app", "jobqueue.worker"]
    assert loaded("import jobqueue.cli.ctl", "jobqueue.cli.ctl_job", *others) == [
        "jobqueue.cli.ctl_job"
    ]


def test_jq_server_and_jq_worker_start_without_what_draws_tables() -> None:
    code = "import jobqueue.cli.server, jobqueue.cli.worker"
    assert loaded(code, "jobqueue.config", "rich", "jobqueue.client.app") == ["jobqueue.config"]
