"""Provide the base of every adapter: the record that a job writes, and the submit loops.

An adapter runs in the environment of its peer, which has no jobqueue, so this module imports the
standard library only. The peer's workers import this module, too, and get its parameters as
environment variables.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

URL = os.environ["BENCH_URL"]
FASTEST = os.environ["BENCH_SETTING"] == "fastest"
WORKERS = int(os.environ["BENCH_WORKERS"])
SLOTS = int(os.environ.get("BENCH_SLOTS", "0"))  # of all workers; 0: the setting's default

_MARK = struct.Struct("<qqq")
_marks: int | None = None


def slots_of_each(usual: int) -> int:
    """Return the slots of a worker process: the number that the user chose, else ``usual``."""
    return SLOTS // WORKERS if SLOTS else usual


def mark(n: int, process: int | None = None) -> None:
    """Append a record of the run of job ``n`` to a file. A measured job does nothing else.

    The append is atomic, costs every peer the same, and needs no connection.
    """
    global _marks  # noqa: PLW0603 - opened once by each process that runs jobs
    if _marks is None:
        _marks = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND)
    os.write(_marks, _MARK.pack(n, process or os.getpid(), time.monotonic_ns()))


class Marks:
    """Reads the file to which every job appends a record when it runs."""

    def __init__(self) -> None:
        self.path = Path(os.environ["BENCH_MARKS"])
        self.path.touch()

    def count(self) -> int:
        """Return the number of jobs that ran."""
        return self.path.stat().st_size // _MARK.size

    def read(self, skip: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yield number, process and time (ns) of each job run, after the first ``skip`` runs."""
        data = self.path.read_bytes()[skip * _MARK.size :]
        yield from _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size])


class Numbers:
    """Hands out job numbers to several callers, until ``count`` are taken or the time is over."""

    def __init__(self, first: int, count: int, seconds: float) -> None:
        self.next, self._end = first, first + count
        self._give_up = time.monotonic() + seconds
        self._lock = threading.Lock()

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> int:
        with self._lock:
            if self.next >= self._end or time.monotonic() > self._give_up:
                raise StopIteration
            self.next += 1
            return self.next - 1

    def take(self, most: int) -> list[int]:
        """Return at most ``most`` further numbers, or an empty list if no number is left."""
        return [n for _, n in zip(range(most), self, strict=False)]


class PeerAdapter:
    """Adapts a peer whose client blocks. Concurrent callers are threads."""

    package: str
    batch = 1_000  # jobs in a batch
    slots = 1  # jobs that a worker process runs at once; 0: no bound

    def version(self) -> str:
        """Return the version of the package that is measured."""
        return version(self.package)

    def prepare(self) -> None:
        """Create the schema and open connections."""

    def submit(self, n: int) -> None:
        """Submit one job, as the first example in the peer's documentation does."""
        raise NotImplementedError

    def submit_batch(self, numbers: Sequence[int]) -> None:
        """Submit many jobs in the best way that the peer's documentation describes."""
        raise NotImplementedError

    def left(self) -> int:
        """Return the number of jobs that wait, run, or ran but are not recorded as ended."""
        raise NotImplementedError

    def workers(self) -> list[list[str]]:
        """Return the commands that start WORKERS processes which run jobs."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return additional environment variables for the workers."""
        return {}

    def close(self) -> None:
        """Close the connections."""

    # The measured calls.

    def single(self, numbers: Numbers) -> None:
        """Submit jobs one by one from one caller."""
        for n in numbers:
            self.submit(n)

    def together(self, numbers: Numbers, callers: int) -> None:
        """Submit jobs one by one from several callers, each of which waits for its answers."""
        with ThreadPoolExecutor(callers) as pool:
            for done in [pool.submit(self.single, numbers) for _ in range(callers)]:
                done.result()

    def batches(self, numbers: Numbers) -> None:
        """Submit jobs in batches from one caller."""
        while taken := numbers.take(self.batch):
            self.submit_batch(taken)

    def timed(self, n: int) -> int:
        """Submit one job, and return the time before the submit in ns."""
        began = time.monotonic_ns()
        self.submit(n)
        return began


class AsyncPeer(PeerAdapter):
    """Adapts a peer whose client is asynchronous. Its event loop runs in a thread."""

    def __init__(self) -> None:
        self._loop = self.new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Create the event loop.

        An adapter may return uvloop in the fastest setting if its peer uses it.
        """
        return asyncio.new_event_loop()

    def wait(self, what: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def open(self) -> None:
        """Create the schema and open connections."""

    async def end(self) -> None:
        """Close the connections."""

    async def send(self, n: int) -> None:
        """Submit one job."""
        raise NotImplementedError

    async def send_batch(self, numbers: Sequence[int]) -> None:
        """Submit many jobs in the best way that the peer's documentation describes."""
        raise NotImplementedError

    async def count_left(self) -> int:
        """Return the number of jobs that wait, run, or ran but are not recorded as ended."""
        raise NotImplementedError

    def prepare(self) -> None:
        self.wait(self.open())

    def close(self) -> None:
        self.wait(self.end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def submit(self, n: int) -> None:
        self.wait(self.send(n))

    def submit_batch(self, numbers: Sequence[int]) -> None:
        self.wait(self.send_batch(numbers))

    def left(self) -> int:
        return self.wait(self.count_left())

    def single(self, numbers: Numbers) -> None:
        self.wait(self._call(numbers))

    def together(self, numbers: Numbers, callers: int) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self._call(numbers) for _ in range(callers)))

        self.wait(all_of_them())

    def timed(self, n: int) -> int:
        async def submit() -> int:  # timed in the loop: the switch of threads does not count
            began = time.monotonic_ns()
            await self.send(n)
            return began

        return self.wait(submit())

    async def _call(self, numbers: Numbers) -> None:
        for n in numbers:
            await self.send(n)


def program(name: str) -> str:
    """Return the path of a program in this Python environment."""
    return str(Path(sys.executable).parent / name)
