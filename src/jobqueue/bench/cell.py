"""A cell: one value for every factor of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Method(StrEnum):
    """The methods that a load calls. ``LIST`` is reported apart."""

    SUBMIT = "submit"
    STATUS = "status"
    RESULT = "result"
    CANCEL = "cancel"
    LIST = "list"


PRIMARY = (Method.SUBMIT, Method.STATUS, Method.RESULT, Method.CANCEL)


class Pressure(StrEnum):
    """Other work at the database during a run."""

    NONE = "none"
    PINNED = "pinned"  # a transaction stays open: dead rows cannot be removed
    SCANS = "scans"  # connections read whole tables, one after another


class RunPlace(StrEnum):
    """The kind of home that the parts of a topology run in."""

    PROCESSES = "processes"
    CONTAINERS = "containers"


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of factors. Equal cells are measured alike, whatever the topology."""

    topology: str
    place: RunPlace = RunPlace.PROCESSES
    servers: int = 1
    workers: int = 1
    slots: int = 6  # jobs that all workers together run at once
    callers: int = 8
    rate: float | None = None  # arrivals a second; None: each caller waits for its answer
    work_ms: int = 0
    payload_bytes: int = 0  # of a job's output
    mix: Mapping[Method, int] = field(default_factory=lambda: {Method.SUBMIT: 1})
    key_ratio: float = 0.0  # the share of submits that have an idempotency key
    key_skew: float = 0.0  # 0: every key is new; above: Zipf's exponent, over a thousand keys
    batch: int = 1  # jobs in a submit
    rows: int = 0  # jobs that were there before
    pressure: Pressure = Pressure.NONE
    scenario: str = ""  # measured instead of a mix of requests

    @property
    def load(self) -> dict[str, Any]:
        """The factors that must be equal in a comparison: all but the topology and its place."""
        parts = self.as_json()
        for name in ("topology", "place", "servers", "workers"):
            del parts[name]
        return parts

    @property
    def key(self) -> str:
        """Equal for equal cells."""
        return json.dumps(self.as_json(), sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        """For a record."""
        return {**asdict(self), "mix": {str(one): share for one, share in self.mix.items()}}

    @classmethod
    def from_json(cls, parts: Mapping[str, Any]) -> Cell:
        """As a record has it."""
        mix = {Method(one): int(share) for one, share in parts["mix"].items()}
        found = {"mix": mix, "place": RunPlace(parts["place"])}
        if "pressure" in parts:
            found["pressure"] = Pressure(parts["pressure"])
        return cls(**{**parts, **found})
