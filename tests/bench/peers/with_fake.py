"""A peer in a file: submits append numbers to it, and each worker runs its share of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from adapter import SLOTS, URL, WORKERS, PeerAdapter, mark

QUEUE = Path(URL.removeprefix("sqlite:///"))


class FakePeer(PeerAdapter):
    def __init__(self) -> None:
        if SLOTS > WORKERS:
            raise NotImplementedError("a worker process runs one job at a time")

    def version(self) -> str:
        return "1.0"

    def prepare(self) -> None:
        QUEUE.touch()
        print("a library that prints")  # is no answer

    def submit(self, n: int) -> None:
        self.submit_batch([n])

    def submit_batch(self, numbers: Sequence[int]) -> None:
        with QUEUE.open("a") as queue:
            queue.write("".join(f"{n}\n" for n in numbers))

    def left(self) -> int:
        ended = sum(
            len(file.read_text().splitlines())
            for file in QUEUE.parent.glob(f"{QUEUE.name}-ended-*")
        )
        return len(QUEUE.read_text().splitlines()) - ended

    def workers(self) -> list[list[str]]:
        return [[sys.executable, __file__, str(share)] for share in range(WORKERS)]


def work(share: int) -> None:
    with QUEUE.open() as queue, (QUEUE.parent / f"{QUEUE.name}-ended-{share}").open("a") as ended:
        while True:
            line = queue.readline()
            if not line:
                time.sleep(0.001)
            elif int(line) % WORKERS == share:
                mark(int(line))
                ended.write(line)
                ended.flush()


make = FakePeer

if __name__ == "__main__":
    work(int(sys.argv[1]))
