"""Define the cell of a benchmark: one value for every factor of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Method(StrEnum):
    """Names the API methods that a load calls. Reports show the figures of ``LIST`` separately."""

    SUBMIT = "submit"
    STATUS = "status"
    RESULT = "result"
    CANCEL = "cancel"
    LIST = "list"


PRIMARY = (Method.SUBMIT, Method.STATUS, Method.RESULT, Method.CANCEL)


class Pressure(StrEnum):
    """Names the extra work that a run puts on the database."""

    NONE = "none"
    PINNED = "pinned"  # a transaction stays open: dead rows cannot be removed
    SCANS = "scans"  # connections read one whole table after another


class RunPlace(StrEnum):
    """Says whether the parts of a topology run as processes or in containers."""

    PROCESSES = "processes"
    CONTAINERS = "containers"


@dataclass(frozen=True, slots=True)
class Cell:
    """Holds one value for each factor of a run. A factor means the same in every topology."""

    topology: str
    place: RunPlace = RunPlace.PROCESSES
    servers: int = 1
    workers: int = 1
    slots: int = 6  # jobs that all workers together run at once
    callers: int = 8
    rate: float | None = None  # requests started per second; None: callers wait for answers
    work_ms: int = 0
    payload_bytes: int = 0  # the size of a job's output
    mix: Mapping[Method, int] = field(default_factory=lambda: {Method.SUBMIT: 1})
    key_ratio: float = 0.0  # the share of submits that have an idempotency key
    key_skew: float = 0.0  # 0: every key is new; else Zipf's exponent over a thousand keys
    batch: int = 1  # jobs in a submit
    rows: int = 0  # finished jobs in the table before the run
    pressure: Pressure = Pressure.NONE
    scenario: str = ""  # the name of the scenario that is measured instead of a mix of requests

    @property
    def load(self) -> dict[str, Any]:
        """Return the factors that must be equal in a comparison.

        The topology, its place, its servers and its workers are left out, because they may differ.
        """
        parts = self.as_json()
        for name in ("topology", "place", "servers", "workers"):
            del parts[name]
        return parts

    @property
    def key(self) -> str:
        """Return a JSON text that is the same for equal cells."""
        return json.dumps(self.as_json(), sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        """Return the cell as a JSON object for a run record."""
        return {**asdict(self), "mix": {str(one): share for one, share in self.mix.items()}}

    @classmethod
    def from_json(cls, parts: Mapping[str, Any]) -> Cell:
        """Build a cell from the JSON object in a run record."""
        mix = {Method(one): int(share) for one, share in parts["mix"].items()}
        found = {"mix": mix, "place": RunPlace(parts["place"])}
        if "pressure" in parts:
            found["pressure"] = Pressure(parts["pressure"])
        return cls(**{**parts, **found})
