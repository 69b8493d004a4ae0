"""Measure how requests and jobs end while one service or one node is down.

Requests start at a fixed rate, so that slow failures do not delay other requests. The service or
node is killed in the middle of the run and not started again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobqueue.bench import fairness
from jobqueue.bench.cell import Cell, Method, RunPlace
from jobqueue.bench.ground import brought_up
from jobqueue.bench.load import LoadGenerator
from jobqueue.bench.measures import answered_well
from jobqueue.bench.profile import Profile
from jobqueue.bench.records import Counts
from jobqueue.taskqueue.designs import catalogue

FILE = "outages.json"
# Each service is killed once, and one node, because all nodes are alike.
KILLED: Mapping[str, Sequence[str]] = {
    "microservices": [service.name for service in catalogue.DESIGN_A],
    "nodes": ["node-0"],
}


def profile(rate: float, seconds: float) -> Profile:
    """Return the profile of the load. Both topologies should handle ``rate`` easily."""
    made = Profile(
        name="outages",
        about="A dead service against a dead node.",
        topologies=list(KILLED),
        base={"rate": rate, "mix": {"submit": 4, "status": 2, "result": 2, "cancel": 1}},
        warm_up=1.0,
        seconds=seconds,
        job_seconds=0,
        listings=0,
        drain=3.0,
        repetitions=1,
    )
    made.check()
    return made


def runs() -> int:
    """Return the number of runs: one for each service or node that is killed."""
    return sum(map(len, KILLED.values()))


@dataclass(frozen=True, slots=True)
class Outage:
    """Describes how requests and jobs ended before and after one service or node was killed."""

    topology: str
    killed: str
    before: dict[str, Counts]  # requests by method, while all parts were running
    during: dict[str, Counts]  # requests by method, after the kill
    accepted: int  # jobs submitted before and after the kill
    done: int
    canceled: int
    failed: int
    open: int  # jobs that had not ended, or whose end could not be read

    def answered(self, method: Method | None = None) -> float:
        """Return the share of requests after the kill that were answered without an error.

        ``method`` selects the requests of one method.
        """
        counts = [one for name, one in self.during.items() if method in (None, name)]
        begun = sum(one.total for one in counts)
        return answered_well(counts) / begun if begun else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the outage as a JSON object for the results file."""
        return asdict(self)

    @classmethod
    def from_json(cls, parts: Mapping[str, Any]) -> Outage:
        """Build an outage from its JSON object in the results file."""
        counts = {
            when: {name: Counts(**one) for name, one in parts[when].items()}
            for when in ("before", "during")
        }
        return cls(**{**parts, **counts})


async def outages(load: Profile) -> AsyncIterator[Outage]:
    """Measure the outages one after another, each on a newly started topology."""
    for shape in load.shapes():
        (cell,) = load.cells_of(shape, RunPlace.PROCESSES)
        for killed in KILLED[shape.topology]:
            yield await _outage(load, cell, killed)


async def _outage(asked: Profile, cell: Cell, killed: str) -> Outage:
    async with brought_up(cell) as ground:
        await fairness.does_a_job(ground.target, cell.topology)
        seed = asked.seed_of(cell, 1)
        with LoadGenerator(ground.target, cell, asked, seed=seed, tag=os.urandom(4).hex()) as load:
            await load.warm_up()
            await load.requests()
            before = load.counts
            load.counts = {}
            os.kill(ground.pids[killed], signal.SIGKILL)
            await load.requests()
            await load.latest_ended()
            await load.account()
    jobs = load.jobs
    return Outage(
        topology=cell.topology,
        killed=killed,
        before=before,
        during=load.counts,
        accepted=jobs.submitted,
        done=jobs.done,
        canceled=jobs.canceled,
        failed=jobs.failed,
        open=jobs.open,
    )
