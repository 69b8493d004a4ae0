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

    jobs: _Many = 100_000  # jobs of a measurement
    types: _Many = 1  # types of jobs, in turn, in scenarios of one process
    payload: _Many = 100  # bytes of a job in a backlog that is published
    batch_size: _Many = 1_000  # jobs in a batch, of submits and of the scheduler
    in_flight: _Many = 2  # batches that are submitted at the same time
    concurrency: _Many = 2_000  # slots of each worker in drains
    rounds: _Many = 3  # measurements without, and with, a transaction that pins xmin
    latency_jobs: _Many = 500  # jobs of a latency measurement, 50 per second
    memory_jobs: _Many = 1_000_000  # jobs through the server whose memory is measured
    finished: _Many = 10_000_000  # finished jobs in the table
    delayed: _Many = 1_000_000  # delayed jobs in the table
    pin_seconds: _Seconds = 300  # how long a transaction pins xmin
    pin_rate: _Many = 5_000  # jobs per second while a transaction pins xmin
    scanned: _Many = 300_000  # finished jobs in the scanned tables
    scan_pause: _Seconds = 5  # how long a scanning transaction stays open after its scan
    nap: Annotated[float, msgspec.Meta(gt=0, le=60)] = 0.05  # seconds that a sleeping job sleeps
    nap_seconds: _Seconds = 10  # how long sleeping jobs are measured per number of workers
    nap_slots: _Many = 10  # slots of each worker of sleeping jobs
    most_workers: _Many = 8  # the most workers of sleeping jobs, reached by 1, 2, 4 …
    crowd: _Many = 100  # workers connected at once
    crowd_seconds: _Seconds = 60  # how long these workers stay connected
    fault_workers: _Many = 8  # workers in scenarios with a fault of a server
    fault_slots: _Many = 2  # slots of each of these workers
    fault_jobs: _Many = 8_000  # jobs that wait when a fault begins
    starts: _Many = 5  # measured starts of a server
    delay: _Seconds = 0.3  # added, each way, between a slow server and PostgreSQL
    silent_seconds: _Seconds = 5  # how long bytes to and from PostgreSQL are lost
    return_seconds: _Seconds = 30  # the time for workers to return to a restarted server
    stopped_jobs: _Many = 8  # jobs that run when server and worker are stopped
    stopped_seconds: _Seconds = 4  # the duration of each of these jobs
    large: _Many = 1_000  # jobs of 256 KiB in the backlog of the memory measurement
    outage: _Seconds = 30  # how long Kafka is stopped
    open_seconds: _Seconds = 60  # how long an enqueueing transaction stays open
    open_rate: _Many = 200  # jobs per second while that transaction is open
    stream_fault_slots: _Many = 200  # slots of the worker in faults of the stream
    stream_jobs: _Many = 20_000  # jobs of a round through the streaming topology
    stream_slots: _Many = 500  # slots of each worker of the streaming topology


@dataclass(frozen=True, slots=True)
class Scenario:
    """Names one scenario of a topology.

    Its module may need a client library, so the module is imported when the scenario starts.
    """

    topology: str
    name: str
    module: str
    services: tuple[str, ...] = ()  # the private servers that the scenario needs

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
