"""Real processes: jq-server and jq-worker, started as a user starts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests import patience, ports, warm
from tests.history.checker import Run
from tests.plain_http import plain_http

ROOT = Path(__file__).resolve().parents[2]
APPS = ("counting_app.py", "ledger_app.py", "rolling_app.py")
HEARTBEAT_TIMEOUT = "JQ_WORKER_HEARTBEAT_TIMEOUT"


class Process:
    """A program that runs, for tests that wait for its end in a loop."""

    def __init__(self, popen: Any) -> None:
        self._popen = popen
        self.pid: int = popen.pid
        self.send_signal: Callable[[int], None] = popen.send_signal
        self.kill: Callable[[], None] = popen.kill

    @property
    def returncode(self) -> int | None:
        status: int | None = self._popen.poll()
        return status

    async def wait(self) -> int:
        """Wait for the end; returns the exit status."""
        while (status := self.returncode) is None:
            await asyncio.sleep(0.01)
        return status


class Site:
    """A folder with a ledger, a store, ports that stay the same, and what runs there."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str],
        servers: int = 1,
        *,
        db_url: str = "",
        redis_url: str = "",
    ) -> None:
        self.folder = folder
        self.db_url = db_url or f"sqlite:///{folder / 'jobs.db'}"
        self.ledger = folder / "ledger"
        self.ports = [(ports.take(), ports.take()) for _ in range(servers)]  # of HTTP and gRPC
        self.urls = [f"http://127.0.0.1:{http}" for http, _ in self.ports]
        self.url = self.urls[0]
        self.targets = [f"127.0.0.1:{grpc}" for _, grpc in self.ports]
        self.target = ",".join(self.targets)  # what clients and workers are told
        self._settings = dict(settings)
        if silent := self._settings.get(HEARTBEAT_TIMEOUT):
            self._settings[HEARTBEAT_TIMEOUT] = f"{patience.stretched(float(silent)):.1f}"
        self._redis_url = redis_url
        self._running: list[Process] = []
        self._log = (folder / "log").open("ab")
        for app in APPS:  # where the programs find them
            shutil.copy(Path(__file__).with_name(app), folder)

    async def start(
        self,
        module: str,
        arguments: tuple[str, ...] = (),
        settings: Mapping[str, str] | None = None,
    ) -> Process:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JQ_")}
        if not module.startswith("jobqueue."):
            environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        popen = warm.popen(
            [sys.executable, "-m", module, "--app", "ledger_app:app", *arguments],
            cwd=self.folder,
            env=environment
            | {
                "PYTHONUNBUFFERED": "1",
                "LEDGER": str(self.ledger),
                "JQ_DB_URL": self.db_url,
                "JQ_REDIS_URL": self._redis_url,
            }
            | self._settings
            | dict(settings or {}),
            stdout=self._log.fileno(),
            stderr=self._log.fileno(),
        )
        process = Process(popen)
        self._running.append(process)
        return process

    async def server(self, number: int = 0, **settings: str) -> Process:
        """Start a jq-server and wait until it says that it is ready."""
        http, grpc = self.ports[number]
        told = {"JQ_HTTP_PORT": str(http), "JQ_GRPC_PORT": str(grpc)}
        process = await self.start("jobqueue.cli.server", settings=told | settings)
        async with plain_http(self.urls[number], timeout=5) as client:
            limit = patience.Limit(60)
            while not limit.over:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/readyz")).status_code == 200:
                        return process
                assert process.returncode is None, f"jq-server ended:\n{self.log_tail()}"
                await asyncio.sleep(0.05)
        raise AssertionError(f"jq-server is not ready:\n{self.log_tail()}")

    async def worker(self, worker_id: str, **settings: str) -> Process:
        return await self.start(
            "jobqueue.cli.worker",
            settings={
                "JQ_WORKER_ID": worker_id,
                "JQ_WORKER_SERVER": self.target,
                "JQ_WORKER_METRICS_PORT": "0",
            }
            | settings,
        )

    async def supervised_workers(self, *names: str) -> Process:
        """Start workers, named ``ID@QUEUE``, that are started again whenever they die."""
        told = {"WORKERS": " ".join(names), "JQ_WORKER_SERVER": self.target}
        told["JQ_WORKER_METRICS_PORT"] = "0"
        return await self.start("tests.faults.supervisor", settings=told)

    async def kill(self, process: Process) -> None:
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def end(self) -> None:
        for process in self._running:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
            await process.wait()
        self._log.close()

    def runs(self) -> list[Run]:
        """The outside ledger."""
        if not self.ledger.exists():
            return []
        pairs = (line.split() for line in self.ledger.read_text().splitlines())
        return [Run(job_id, int(attempt)) for job_id, attempt in pairs]

    def log_tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4_000:]
