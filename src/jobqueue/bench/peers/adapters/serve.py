"""Measure one peer: ``python serve.py with_NAME``.

The process reads requests and writes answers, each a JSON object on a line:

    → (nothing)                                          ← {"ready": VERSION}
    → {"do": "start"}                                    ← {"processes": 2, "slots": 20}
    → {"do": "latency", "jobs": 60, "every": 0.02, "seconds": 2}  ← {"started_ms": [...],
                                                                   "done_ms": [...]}
    → {"do": "pause"}                                    ← {}
    → {"do": "single", "jobs": 500, "seconds": 2}        ← {"jobs": 500, "seconds": 0.4}
    → {"do": "together", ..., "callers": 50}             ← the same
    → {"do": "batch", ...}                               ← the same
    → {"do": "drain", "seconds": 5}                      ← the same, and "again": repeated runs

The answer to a request that fails is {"error": REASON}. When its input ends, the process kills
its workers and exits.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from adapter import Marks, Numbers, PeerAdapter

_POLL = 0.001
_PATIENCE = 30.0  # for workers to run their first jobs
_ROUND = 50  # jobs that are sent until all workers took part
_STUCK = 2.0


class Measuring:
    """Measures one peer with its workers."""

    def __init__(self, peer: PeerAdapter, workers: int) -> None:
        self._peer = peer
        self._workers = workers
        self._marks = Marks()
        self._next = 0  # number of the next job
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> dict[str, Any]:
        """Start the workers, and send jobs until every worker process ran a job."""
        environment = {**os.environ, **self._peer.environment()}
        for command in self._peer.workers():
            # A process group of its own: its processes are paused and killed together.
            self._processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, process_group=0
                )
            )
        give_up = time.monotonic() + _PATIENCE
        seen: set[int] = set()
        while len(seen) < self._workers:
            self._rate(self._peer.batches, _ROUND, _PATIENCE)
            if not self._wait(give_up):
                raise TimeoutError(f"the workers did not end their jobs in {_PATIENCE:.0f} s")
            seen = {pid for _, pid, _ in self._marks.read()}
            if time.monotonic() > give_up:
                break  # with some peers one worker process may run all jobs
        return {"processes": len(seen), "slots": self._peer.slots * self._workers}

    def latency(self, jobs: int, every: float, seconds: float) -> dict[str, Any]:
        """Measure the times from a submit to the handler's start and to the job's recorded end.

        One job at a time runs in an idle system. The recorded end is polled each millisecond after
        the handler ran.
        """
        before = self._marks.count()
        began: dict[int, int] = {}
        ended: dict[int, int] = {}
        give_up = time.monotonic() + seconds
        while len(began) < jobs and time.monotonic() < give_up:
            time.sleep(every)
            n = self._next
            began[n] = self._peer.timed(n)
            self._next += 1
            if not self._wait(give_up + _PATIENCE):
                raise TimeoutError(f"job {n} did not end within {_PATIENCE:.0f} s")
            ended[n] = time.monotonic_ns()
        ran = {n: at for n, _, at in self._marks.read(before)}
        return {
            "started_ms": [(ran[n] - at) / 1e6 for n, at in began.items()],
            "done_ms": [(ended[n] - at) / 1e6 for n, at in began.items()],
        }

    def pause(self) -> dict[str, Any]:
        """Suspend the workers by SIGSTOP, so that new jobs wait until ``drain``."""
        with ThreadPoolExecutor(1) as pool:
            while True:
                self._signal(signal.SIGSTOP)
                submit = pool.submit(self._peer.submit, self._next)
                self._next += 1
                try:
                    submit.result(_STUCK)
                except TimeoutError:
                    # A worker suspended in a transaction may hold a lock that the submit needs.
                    self._signal(signal.SIGCONT)
                    submit.result()
                else:
                    return {}

    def single(self, jobs: int, seconds: float) -> dict[str, Any]:
        """Measure the rate of one caller that submits single jobs."""
        return self._rate(self._peer.single, jobs, seconds)

    def together(self, jobs: int, seconds: float, callers: int) -> dict[str, Any]:
        """Measure the rate of several callers that submit single jobs."""
        return self._rate(lambda numbers: self._peer.together(numbers, callers), jobs, seconds)

    def batch(self, jobs: int, seconds: float) -> dict[str, Any]:
        """Measure the rate of one caller that submits batches."""
        return self._rate(self._peer.batches, jobs, seconds)

    def drain(self, seconds: float) -> dict[str, Any]:
        """Resume the workers, and measure until all jobs are recorded as ended.

        The measurement stops after ``seconds`` at the latest.
        """
        before = self._marks.count()
        began = time.monotonic()
        self._signal(signal.SIGCONT)
        self._wait(began + seconds)
        took = time.monotonic() - began
        ran = [n for n, _, _ in self._marks.read(before)]
        return {"jobs": len(set(ran)), "seconds": took, "again": len(ran) - len(set(ran))}

    def end(self) -> None:
        """Kill the workers. Their unfinished jobs are dropped."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _rate(self, submit: Callable[[Numbers], None], jobs: int, seconds: float) -> dict[str, Any]:
        numbers = Numbers(self._next, jobs, seconds)
        began = time.monotonic()
        submit(numbers)
        took = time.monotonic() - began
        submitted = numbers.next - self._next
        self._next = numbers.next
        return {"jobs": submitted, "seconds": took}

    def _wait(self, give_up: float) -> bool:
        """Wait until every job ran and is recorded as ended.

        Returns False if a job is left at the time ``give_up``.
        """
        while self._marks.count() < self._next or self._peer.left():
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(
                        f"worker process {process.pid} ended with status {process.returncode}"
                    )
            if time.monotonic() > give_up:
                return False
            time.sleep(_POLL)
        return True

    def _signal(self, which: signal.Signals) -> None:
        for process in self._processes:
            os.killpg(process.pid, which)


def requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    # Output that a library prints goes to stderr, so that stdout has only answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(told: dict[str, Any]) -> None:
        answers.write(json.dumps(told) + "\n")
        answers.flush()

    try:
        peer: PeerAdapter = import_module(sys.argv[1]).make()
        peer.prepare()
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        raise
    measuring = Measuring(peer, int(os.environ["BENCH_WORKERS"]))
    try:
        answer({"ready": peer.version()})
        for asked in requests():
            do = asked.pop("do")
            try:
                answer(getattr(measuring, do)(**asked))
            except Exception as error:
                answer({"error": f"{type(error).__name__}: {error}"})
    finally:
        measuring.end()
    peer.close()


if __name__ == "__main__":
    main()
