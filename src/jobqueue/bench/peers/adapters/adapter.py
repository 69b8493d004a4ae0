"""The base of every adapter: the handler's mark, and the submit loops.

An adapter runs in the environment of its peer, which has no jobqueue: only the standard library is
imported here. The same module is imported by the peer's workers, so what it is told is in the
environment.
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
SLOTS = int(os.environ.get("BENCH_SLOTS", "0"))  # in all workers; 0: as many as the setting has

_MARK = struct.Struct("<qqq")
_marks: int | None = None


def slots_of_each(usual: int) -> int:
    """Jobs that a worker process runs at once: the number asked for, else the setting's own."""
    return SLOTS // WORKERS if SLOTS else usual


def mark(n: int, process: int | None = None) -> None:
    """The whole work of a job: note that it ran, where and when.

    One append of 24 bytes, which is atomic in the kernel. It costs every
    peer the same, and needs no connection.
    """
    global _marks  # noqa: PLW0603 - opened once by each process that runs jobs
    if _marks is None:
        _marks = os.open(os.environ["BENCH_MARKS"], os.O_WRONLY | os.O_APPEND)
    os.write(_marks, _MARK.pack(n, process or os.getpid(), time.monotonic_ns()))


class Marks:
    """The marks that handlers left in the file."""

    def __init__(self) -> None:
        self.path = Path(os.environ["BENCH_MARKS"])
        self.path.touch()

    def count(self) -> int:
        """The number of jobs that ran."""
        return self.path.stat().st_size // _MARK.size

    def read(self, skip: int = 0) -> Iterator[tuple[int, int, int]]:
        """Number, process and time (ns) of every job that ran, but for the first ones."""
        data = self.path.read_bytes()[skip * _MARK.size :]
        yield from _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size])


class Numbers:
    """Numbers of jobs for any count of callers, until enough were taken or the time is up."""

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
        """The next few; none at the end."""
        return [n for _, n in zip(range(most), self, strict=False)]


class PeerAdapter:
    """A peer whose client blocks. Callers at once are threads."""

    package: str
    batch = 1_000  # jobs in a batch
    slots = 1  # jobs that a worker process runs at once; 0: no bound

    def version(self) -> str:
        """Of the package that is measured."""
        return version(self.package)

    def prepare(self) -> None:
        """Make the schema, open connections."""

    def submit(self, n: int) -> None:
        """Submit one job, as the documentation's first example does."""
        raise NotImplementedError

    def submit_batch(self, numbers: Sequence[int]) -> None:
        """Submit many by the best that the documentation has for it."""
        raise NotImplementedError

    def left(self) -> int:
        """Jobs that wait, run, or ran and are not recorded as ended."""
        raise NotImplementedError

    def workers(self) -> list[list[str]]:
        """The commands that start WORKERS processes which run jobs."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """More environment for the workers."""
        return {}

    def close(self) -> None:
        """Close connections."""

    # What is measured.

    def single(self, numbers: Numbers) -> None:
        """One caller."""
        for n in numbers:
            self.submit(n)

    def together(self, numbers: Numbers, callers: int) -> None:
        """Several callers, each of which waits for its answer."""
        with ThreadPoolExecutor(callers) as pool:
            for done in [pool.submit(self.single, numbers) for _ in range(callers)]:
                done.result()

    def batches(self, numbers: Numbers) -> None:
        """One caller that has many jobs."""
        while taken := numbers.take(self.batch):
            self.submit_batch(taken)

    def timed(self, n: int) -> int:
        """Submit one job; when that began (ns)."""
        began = time.monotonic_ns()
        self.submit(n)
        return began


class AsyncPeer(PeerAdapter):
    """A peer whose client is a coroutine. Its loop goes on between the measurements."""

    def __init__(self) -> None:
        self._loop = self.new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """uvloop, where the package itself asks for it and the fastest setting is measured."""
        return asyncio.new_event_loop()

    def wait(self, what: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    async def open(self) -> None:
        """Make the schema, open connections."""

    async def end(self) -> None:
        """Close connections."""

    async def send(self, n: int) -> None:
        """Submit one job."""
        raise NotImplementedError

    async def send_batch(self, numbers: Sequence[int]) -> None:
        """Submit many."""
        raise NotImplementedError

    async def count_left(self) -> int:
        """As ``left``."""
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
        async def submit() -> int:  # the way from this thread to the loop's is no peer's
            began = time.monotonic_ns()
            await self.send(n)
            return began

        return self.wait(submit())

    async def _call(self, numbers: Numbers) -> None:
        for n in numbers:
            await self.send(n)


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)
