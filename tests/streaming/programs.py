"""The streaming topology as real programs, for faults that end or stop them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from jobqueue.config import keys
from jobqueue.connect.backends import create_store
from jobqueue.core.store import BEGINNING
from tests import patience
from tests.cli import processes
from tests.faults import ledger_app, supervisor
from tests.faults.processes import ROOT
from tests.history.checker import Evidence, Run
from tests.services.topics import Topics
from tests.streaming.system import PATIENCE, flags, until

START = 60.0  # of several programs at once
APP = "ledger_app:app"


class Programs:
    """jq-server and jq-worker in one folder, with a ledger of what was executed."""

    def __init__(self, folder: Path, redis_url: str, kafka: Topics, **more: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.ledger = folder / "ledger"
        shutil.copy(ledger_app.__file__, folder)  # where the programs find it
        self.accepted: list[str] = []
        told = flags(redis_url, kafka, **more)
        self._environment = {keys()[path].env: value for path, value in told.items()}
        self._stack = ExitStack()
        self._url = ""

    def server(self, role: str) -> processes.Service:
        return self._start("server", {"JQ_SERVER_ROLE": role})

    def api(self) -> processes.Service:
        started = self.server("api")
        self._url = started.line("ready", START)["http"]
        return started

    def worker(self, worker_id: str, concurrency: int = 4) -> processes.Service:
        told = {"JQ_WORKER_ID": worker_id, "JQ_WORKER_CONCURRENCY": str(concurrency)}
        return self._start("worker", {**told, "JQ_WORKER_APP": APP})

    def supervised_workers(self, *names: str) -> processes.Service:
        """Workers, named ``ID@QUEUE``, that are started again whenever they die."""
        told = {"WORKERS": " ".join(names), "JQ_WORKER_APP": APP}
        return self._start(Path(supervisor.__file__), told)

    def _start(self, module: str | Path, more: Mapping[str, str]) -> processes.Service:
        environment = {"LEDGER": str(self.ledger), **self._environment, **more}
        if isinstance(module, Path):
            environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        made = processes.Service(module, cwd=self.folder, **environment)
        return self._stack.enter_context(made)

    def close(self) -> None:
        self._stack.close()

    # -- what clients see ----------------------------------------------------------------------

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url, trust_env=False, timeout=patience.longest(PATIENCE)
        )

    async def submit(
        self, http: httpx.AsyncClient, count: int, task: str = "short", **more: Any
    ) -> list[str]:
        body = {"type": task, "payload": {"number": 1}, "max_retries": 100}
        made = []
        for _ in range(count):
            answer = await http.post("/jobs", json=body | more)
            assert answer.status_code == 202, answer.text
            made.append(answer.json()["job_id"])
        self.accepted += made
        return made

    async def all_are(self, http: httpx.AsyncClient, status: str, *job_ids: str) -> None:
        wanted = set(job_ids or self.accepted)

        async def reached() -> bool:
            found = (await http.get("/jobs", params={"status": status, "limit": 100})).json()
            return wanted <= {one["job_id"] for one in found["jobs"]}

        await until(reached, f"{len(wanted)} jobs are {status}", within=60.0)

    # -- what the run left behind --------------------------------------------------------------

    def runs(self) -> list[Run]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [Run(job_id, int(attempt)) for job_id, attempt in map(str.split, lines)]

    async def evidence(self, *, dead_letters_allowed: bool = False) -> Evidence:
        store = create_store(self.redis_url)
        await store.open()
        try:
            events, position = [], BEGINNING
            while page := await store.stream.events_after(position, 1_000):
                events += [event for _, event in page]
                position = page[-1][0]
            jobs = {job_id: await store.reads.get(job_id) for job_id in self.accepted}
        finally:
            await store.close()
        return Evidence(
            events=events,
            jobs={job_id: job for job_id, job in jobs.items() if job is not None},
            accepted=self.accepted,
            runs=self.runs(),
            settled=True,
            dead_letters_allowed=dead_letters_allowed,
        )


async def line(program: processes.Service, beginning: str) -> None:
    """Wait for what it says, while the loop goes on."""
    await asyncio.to_thread(program.line, beginning, START)
