"""List the scenarios, the servers that they need, and their sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    from jobqueue.bench.records import Figure
    from jobqueue.bench.scenarios.stand import Stand

_Many = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]


class Sizes(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Holds the sizes of scenarios. ``--set`` and a profile's ``sizes`` change them."""

    jobs: _Many = 100_000  # of a measurement
    types: _Many = 1  # of tasks, in turn, in one process
    payload: _Many = 100  # bytes of a job in a backlog that is published
    batch_size: _Many = 1_000  # jobs in a batch, of submits and of the scheduler
    in_flight: _Many = 2  # batches
    concurrency: _Many = 2_000  # slots of each worker in drains
    rounds: _Many = 3  # in which a side is measured while a transaction pins xmin
    latency_jobs: _Many = 500  # 50 a second
    memory_jobs: _Many = 1_000_000  # that pass through the server whose memory is watched
    finished: _Many = 10_000_000  # finished jobs in the table
    delayed: _Many = 1_000_000  # delayed jobs in the table
    pin_seconds: _Seconds = 300  # how long a transaction pins xmin
    pin_rate: _Many = 5_000  # jobs a second meanwhile
    scanned: _Many = 300_000  # finished jobs that are scanned
    scan_pause: _Seconds = 5  # that a scanning transaction stays open after its scan
    nap: Annotated[float, msgspec.Meta(gt=0, le=60)] = 0.05  # seconds that a sleeping job sleeps
    nap_seconds: _Seconds = 10  # of sleeping jobs for each number of workers
    nap_slots: _Many = 10  # of each worker of sleeping jobs
    most_workers: _Many = 8  # of sleeping jobs: 1, 2, 4 … so many
    crowd: _Many = 100  # workers connected at once
    crowd_seconds: _Seconds = 60  # how long they are held
    fault_workers: _Many = 8  # while servers are disturbed
    fault_slots: _Many = 2  # of each
    fault_jobs: _Many = 8_000  # that wait when a fault comes
    starts: _Many = 5  # of a server
    delay: _Seconds = 0.3  # more, each way, between a slow server and PostgreSQL
    silent_seconds: _Seconds = 5  # that bytes are swallowed
    return_seconds: _Seconds = 30  # that workers have to return to a server
    stopped_jobs: _Many = 8  # that run when server and worker are stopped
    stopped_seconds: _Seconds = 4  # that each of them takes
    large: _Many = 1_000  # jobs of 256 KiB in the backlog that memory is watched with
    outage: _Seconds = 30  # that Kafka is away
    open_seconds: _Seconds = 60  # that an enqueueing transaction stays open
    open_rate: _Many = 200  # jobs a second meanwhile
    stream_fault_slots: _Many = 200  # of the worker while the stream is disturbed
    stream_jobs: _Many = 20_000  # of a round through the streaming topology
    stream_slots: _Many = 500  # of each of its workers


@dataclass(frozen=True, slots=True)
class Scenario:
    """Names one scenario of a topology. Its module is imported when the scenario starts.

    The module may need a client library that is not installed.
    """

    topology: str
    name: str
    module: str
    services: tuple[str, ...] = ()  # private ones that it stands on

    def measure(self) -> Callable[[Stand], Awaitable[list[Figure]]]:
        """Import and return the function that measures the scenario."""
        module = import_module(f"jobqueue.bench.scenarios.{self.module}")
        found: Callable[[Stand], Awaitable[list[Figure]]]
        found = getattr(module, self.name.replace("-", "_"))
        return found


_STORE = ("postgres", "redis")
_STREAM = (*_STORE, "kafka")


def _scenarios(topology: str, services: tuple[str, ...], **modules: str) -> dict[str, Scenario]:
    return {
        name: Scenario(topology, name, module, services)
        for module, names in modules.items()
        for name in names.split()
    }


SCENARIOS: Mapping[str, Mapping[str, Scenario]] = {
    "embedded": _scenarios(
        "embedded", (), embedded="batch drain hand-off single latency memory calls"
    ),
    "replicated": _scenarios(
        "replicated",
        _STORE,
        rates="batch calls drain direct cycle latency",
        crowds="memory scaling crowd",
        aged="finished delayed pinned scanned",
        faults="start stopped silent killed restarted slow",
    ),
    "streaming": _scenarios(
        "streaming",
        _STREAM,
        relaying="relay memory drain",
        replaying="replay",
        streaming="topology plain outage killed reverse left-open",
    ),
}
