"""The public names, so that adding or losing one is a decision."""

from __future__ import annotations

import subprocess
import sys

import jobqueue

NAMES = [
    "Abort",
    "Context",
    "DeadlineExceeded",
    "InvalidArgument",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobQueue",
    "JobQueueError",
    "QueueFull",
    "QueueSpec",
    "RateLimited",
    "RetryLater",
    "State",
    "SyncTaskQueueClient",
    "Task",
    "TaskQueueClient",
    "Tls",
    "__version__",
]


def test_the_public_names() -> None:
    assert sorted(jobqueue.__all__) == NAMES
    assert all(hasattr(jobqueue, name) for name in NAMES)


def test_importing_the_package_loads_no_server_and_no_database_client() -> None:
    heavy = ["grpc", "fastapi", "uvicorn", "typer", "rich", "yaml", "asyncpg", "redis", "sqlite3"]
    code = f"import sys, jobqueue; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
