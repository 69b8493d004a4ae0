"""Read and check profiles: what to measure, how long, how often, and how much may disturb a run.

A profile is a YAML file. A factor that is a list stands for each of its values. An entry of
``cells`` with several lists stands for their product. The values in ``base`` apply to every cell.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from jobqueue.bench.cell import Cell, Method, Pressure, RunPlace
from jobqueue.bench.scenarios.catalogue import SCENARIOS, Scenario, Sizes
from jobqueue.core.errors import InvalidArgument, NotFound
from jobqueue.fleet.topologies import LAYOUTS

_SUFFIX = ".yml"
_MOST_RUNS = 10_000

# The topologies whose API is taskqueue.v1, which has no batches.
TASKQUEUE = frozenset({"microservices", "nodes"})
_SHAPES = {"nodes": {"servers": 6, "workers": 6}}  # default sizes other than one of each

Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Some = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class Topology(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Names a topology and its size. Compared cells may differ in nothing else."""

    topology: str
    servers: Some = 1
    workers: Some = 1


class Factors(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Validates the factors of one cell."""

    slots: Some = 6
    callers: Some = 8
    rate: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None
    work_ms: Annotated[int, msgspec.Meta(ge=0, le=600_000)] = 0
    payload_bytes: Annotated[int, msgspec.Meta(ge=0, le=256 * 1024)] = 0
    mix: dict[Method, Count] = msgspec.field(default_factory=lambda: {Method.SUBMIT: 1})
    key_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    key_skew: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    batch: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    rows: Annotated[int, msgspec.Meta(ge=0, le=100_000_000)] = 0
    pressure: Pressure = Pressure.NONE


_FACTORS = frozenset(one.name for one in msgspec.structs.fields(Factors))
_SIZES = frozenset(one.name for one in msgspec.structs.fields(Sizes))


class Profile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Describes what a benchmark measures and how."""

    name: str = ""
    about: str
    topologies: list[Any] = []
    base: dict[str, Any] = msgspec.field(default_factory=dict)
    cells: list[dict[str, Any]] = msgspec.field(default_factory=lambda: [{}])
    scenarios: dict[str, list[str]] = {}  # by the topology that they measure
    sizes: dict[str, Any] = {}  # of the scenarios
    warm_up: Seconds = 1.0
    seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5.0
    job_seconds: Seconds = 2.0  # how long callers submit job after job; 0: not measured
    listings: Count = 20  # calls of list, one after another
    drain: Seconds = 10.0  # the longest wait for the end of a run's jobs
    repetitions: Some = 3
    seed: int = 1
    calm: Seconds = 10.0  # the longest wait for an idle machine
    others: Annotated[float, msgspec.Meta(ge=0)] = 0.25  # cores of others that disturb no run
    repeats: Count = 10  # the most disturbed runs that are made again

    def shapes(self) -> list[Topology]:
        """Return the topologies of the profile with their sizes."""
        return [_topology(self.name, one) for one in self.topologies]

    def loads(self) -> list[dict[str, Any]]:
        """Return the distinct combinations of factors, which every topology runs."""
        found = []
        for entry in self.cells:
            for factors in _product({**self.base, **entry}):
                one = _factors(self.name, factors)
                if one not in found:
                    found.append(one)
        return [msgspec.structs.asdict(one) for one in found]

    def cells_of(self, shape: Topology, place: RunPlace) -> list[Cell]:
        """Return the cells of one topology."""
        return [
            Cell(
                topology=shape.topology,
                place=place,
                servers=shape.servers,
                workers=shape.workers,
                **load,
            )
            for load in self.loads()
        ]

    def chosen(self) -> list[Scenario]:
        """Return the scenarios of the profile."""
        return [
            _scenario(self.name, topology, name)
            for topology, names in self.scenarios.items()
            for name in dict.fromkeys(names)
        ]

    def all_sizes(self) -> Sizes:
        """Return the checked sizes of the profile's scenarios."""
        try:
            return msgspec.convert(self.sizes, Sizes)
        except msgspec.ValidationError as error:
            raise _wrong(self.name, f"sizes: {error}") from None

    @property
    def runs(self) -> int:
        """Return the number of planned runs, without repeats of disturbed runs."""
        cells = len(self.shapes()) * len(self.loads())
        return (cells + len(self.chosen())) * self.repetitions

    def check(self) -> None:
        """Raise InvalidArgument if the profile cannot run, or if its comparison would be unfair."""
        shapes, loads = self.shapes(), self.loads()
        self.all_sizes()
        for shape, load in itertools.product(shapes, loads):
            _check(self.name, shape, load)
        if not self.runs:
            raise _wrong(self.name, "has no cells and no scenarios; add topologies or scenarios")
        if self.runs > _MOST_RUNS:
            raise _wrong(self.name, f"plans {self.runs:,} runs; at most {_MOST_RUNS:,} are allowed")

    def seed_of(self, cell: Cell, repetition: int) -> int:
        """Return the seed of a repetition, which is equal for all topologies.

        Equal seeds give every topology the same requests in the same order.
        """
        text = json.dumps([self.seed, repetition, cell.load], sort_keys=True)
        return zlib.crc32(text.encode())

    def with_(
        self,
        settings: Mapping[str, Any],
        topologies: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> Profile:
        """Return a copy of the profile that is changed by command-line options.

        ``settings`` has new values of fields, of factors in all cells, and of scenario sizes.
        ``topologies`` selects topologies by name. ``only`` selects these scenarios and no cells.
        """
        own = {one.name for one in msgspec.structs.fields(self)}
        own -= {"name", "cells", "base", "scenarios", "sizes"}
        changed: dict[str, Any] = msgspec.structs.asdict(self)
        for name, value in settings.items():
            if name in own:
                changed[name] = value
            elif name in _FACTORS:
                changed["base"] = {**changed["base"], name: value}
                changed["cells"] = [
                    {key: kept for key, kept in entry.items() if key != name}
                    for entry in changed["cells"]
                ]
            elif name in _SIZES:
                changed["sizes"] = {**changed["sizes"], name: value}
            else:
                allowed = ", ".join(sorted(own | _FACTORS | _SIZES))
                raise InvalidArgument("--set", f"unknown factor {name!r}; allowed: {allowed}")
        made = _convert(self.name, changed)
        if topologies:
            kept = {name: some for name, some in made.scenarios.items() if name in topologies}
            cells = _chosen(made, topologies, [] if made.scenarios else topologies)
            made = _convert(self.name, {**changed, "topologies": cells, "scenarios": kept})
        if only:
            found = {"topologies": [], "scenarios": _only(made, only)}
            made = _convert(self.name, {**msgspec.structs.asdict(made), **found})
        return made

    def as_json(self) -> dict[str, Any]:
        """Return the profile as JSON for environment.json, from which the run can be repeated."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


def shipped() -> list[str]:
    """Return the names of the profiles that the package contains."""
    found = resources.files("jobqueue.bench").joinpath("profiles").iterdir()
    return sorted(one.name.removesuffix(_SUFFIX) for one in found if one.name.endswith(_SUFFIX))


def load(name: str) -> Profile:
    """Return a profile of the package by its name, or any profile by the path of its file."""
    if name in shipped():
        text = resources.files("jobqueue.bench").joinpath("profiles", name + _SUFFIX).read_text()
    elif name.endswith((_SUFFIX, ".yaml")):
        try:
            text = Path(name).read_text()
        except OSError as error:
            raise NotFound(f"PROFILE: cannot read {name}: {error.strerror}") from error
        name = Path(name).stem
    else:
        raise InvalidArgument(
            "PROFILE", f"{name!r} is unknown; allowed: {', '.join(shipped())}, or a {_SUFFIX} file"
        )
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _wrong(name, f"is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise _wrong(name, "is not a YAML mapping of names to values")
    return _convert(name, {**document, "name": name})


def setting(text: str) -> tuple[str, Any]:
    """Parse a ``NAME=VALUE`` of ``--set``. The value is YAML. Commas make it a list."""
    name, sep, value = text.partition("=")
    if not sep or not name:
        raise InvalidArgument("--set", f"{text!r} is not NAME=VALUE")
    try:
        bare = "," in value and not value.lstrip().startswith(("[", "{"))
        return name.strip(), yaml.safe_load(f"[{value}]" if bare else value)
    except yaml.YAMLError:
        raise InvalidArgument("--set", f"{text!r}: the value is not valid YAML") from None


def _convert(name: str, document: Mapping[str, Any]) -> Profile:
    try:
        profile = msgspec.convert(document, Profile)
    except msgspec.ValidationError as error:
        raise _wrong(name, str(error)) from None
    profile.check()
    return profile


def _topology(profile: str, given: Any) -> Topology:
    entry = {"topology": given} if isinstance(given, str) else given
    if isinstance(entry, Mapping):
        entry = {**_SHAPES.get(str(entry.get("topology")), {}), **entry}
    try:
        made = msgspec.convert(entry, Topology)
    except msgspec.ValidationError as error:
        if isinstance(entry, Mapping) and any(name in _FACTORS for name in entry):
            raise _wrong(
                profile,
                "topologies: compared topologies may differ in servers and workers only:"
                f" move {', '.join(sorted(_FACTORS & set(entry)))} to cells",
            ) from None
        raise _wrong(profile, f"topologies: {error}") from None
    if made.topology not in LAYOUTS:
        raise _wrong(
            profile, f"topologies: {made.topology!r} is unknown; allowed: {', '.join(LAYOUTS)}"
        )
    return made


def _factors(profile: str, given: Mapping[str, Any]) -> Factors:
    try:
        return msgspec.convert(given, Factors)
    except msgspec.ValidationError as error:
        raise _wrong(profile, f"cells: {error}") from None


def _product(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    lists = [value if isinstance(value, list) else [value] for value in entry.values()]
    for values in itertools.product(*lists):
        yield dict(zip(entry, values, strict=True))


def _check(profile: str, shape: Topology, load: Mapping[str, Any]) -> None:
    if not load["mix"].get(Method.SUBMIT):
        raise _wrong(profile, "mix: submit must be above 0, because the other calls need its jobs")
    if load["batch"] > 1 and load["key_ratio"]:
        raise _wrong(
            profile, "batch: must be 1 if key_ratio is above 0, because a key names one job"
        )
    if load["batch"] > 1 and shape.topology in TASKQUEUE:
        raise _wrong(
            profile, f"batch: must be 1, because {shape.topology} accepts one job in a submit"
        )
    for factor in ("rows", "pressure"):
        if load[factor] not in (0, Pressure.NONE) and shape.topology != "replicated":
            raise _wrong(
                profile,
                f"{factor}: needs PostgreSQL, so only the replicated topology allows it, not"
                f" {shape.topology}",
            )
    if load["slots"] % shape.workers:
        raise _wrong(
            profile,
            f"slots: {load['slots']} cannot be shared equally among {shape.workers} workers"
            f" ({shape.topology}), so the comparison would not be fair",
        )
    one_of_each = shape.topology in ("embedded", "microservices")
    if one_of_each and (shape.servers, shape.workers) != (1, 1):
        raise _wrong(profile, f"topologies: {shape.topology} must have one server and one worker")
    if shape.topology == "nodes" and shape.servers != shape.workers:
        raise _wrong(
            profile,
            "topologies: nodes must have equal numbers of servers and workers,"
            " because a node is both",
        )


def _scenario(profile: str, topology: str, name: str) -> Scenario:
    if topology not in SCENARIOS:
        raise _wrong(
            profile,
            f"scenarios: {topology!r} has no scenarios; topologies with scenarios:"
            f" {', '.join(SCENARIOS)}",
        )
    if name not in SCENARIOS[topology]:
        known = ", ".join(SCENARIOS[topology])
        raise _wrong(profile, f"scenarios: {name!r} is unknown for {topology}; allowed: {known}")
    return SCENARIOS[topology][name]


def _only(profile: Profile, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the named scenarios by topology, whether or not the profile lists them."""
    known = {name for topology in profile.scenarios for name in SCENARIOS[topology]}
    for name in names:
        if name not in known:
            allowed = f"allowed: {', '.join(sorted(known))}" if known else "it has no scenarios"
            raise InvalidArgument(
                "--only", f"{name!r} is not a scenario of profile {profile.name}; {allowed}"
            )
    return {
        topology: [name for name in names if name in SCENARIOS[topology]]
        for topology in profile.scenarios
    }


def _chosen(profile: Profile, names: Sequence[str], added: Sequence[str]) -> list[Any]:
    known = dict(zip([one.topology for one in profile.shapes()], profile.topologies, strict=True))
    for name in names:
        if name not in LAYOUTS:
            raise InvalidArgument(
                "--topology", f"{name!r} is unknown; allowed: {', '.join(LAYOUTS)}"
            )
    found = [
        given
        for given, shape in zip(profile.topologies, profile.shapes(), strict=True)
        if shape.topology in names
    ]
    return found + [name for name in added if name not in known]


def _wrong(name: str, message: str) -> InvalidArgument:
    return InvalidArgument(f"profile {name}", message)
