"""Profiles: what they stand for, and what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobqueue.bench.cell import Cell, Method, RunPlace
from jobqueue.bench.ground import layout_of
from jobqueue.bench.profile import Profile, load, setting, shipped
from jobqueue.core.errors import InvalidArgument, NotFound


def written(folder: Path, **document: Any) -> Profile:
    file = folder / "mine.yml"
    file.write_text(yaml.safe_dump({"about": "", "topologies": ["nodes"], **document}))
    return load(str(file))


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_profile_can_be_run(name: str) -> None:
    profile = load(name)
    assert profile.about
    for shape in profile.shapes():
        for cell in profile.cells_of(shape, RunPlace.PROCESSES):
            assert Cell.from_json(cell.as_json()) == cell


@pytest.mark.req("tq:EVAL")
def test_parity_moves_every_factor_of_the_document_in_at_most_ten_minutes() -> None:
    profile = load("parity")
    assert {one.topology for one in profile.shapes()} == {"microservices", "nodes"}
    loads = profile.loads()
    for factor in ("callers", "work_ms", "key_ratio", "key_skew"):
        assert len({one[factor] for one in loads}) > 1, factor
    assert len({tuple(one["mix"].items()) for one in loads}) > 1
    assert all(one["slots"] == 6 for one in loads)
    assert any(one["mix"].get(Method.CANCEL) for one in loads)
    each = profile.warm_up + profile.seconds + profile.job_seconds + profile.drain
    blocks = len(profile.shapes()) * profile.repetitions
    runs = blocks * len(loads) + profile.repeats
    starting_and_calm = blocks * (profile.calm + 10)
    assert runs * each + starting_and_calm <= 600


@pytest.mark.req("tq:FAIR", "tq:LOCK-2", "tq:NFR-6")
@pytest.mark.parametrize("topology", ["microservices", "nodes"])
def test_both_designs_are_six_processes_with_six_slots(topology: str, tmp_path: Path) -> None:
    profile = load("parity")
    (shape,) = (one for one in profile.shapes() if one.topology == topology)
    layout = layout_of(profile.cells_of(shape, RunPlace.PROCESSES)[0], tmp_path)
    assert len(layout.processes) == 6
    slots = [
        int(process.environment["WORKER_SLOTS"])
        for process in layout.processes
        if "WORKER_SLOTS" in process.environment
    ]
    assert slots == ([6] if topology == "microservices" else [1] * 6)


@pytest.mark.req("tq:FAIR")
def test_what_both_can_be_told_they_are_told_the_same(tmp_path: Path) -> None:
    told: list[dict[str, str]] = []
    for shape in load("parity").shapes():
        layout = layout_of(load("parity").cells_of(shape, RunPlace.PROCESSES)[0], tmp_path)
        told.append({k: v for one in layout.processes for k, v in one.environment.items()})
    shared = told[0].keys() & told[1].keys() - {"WORKER_ID", "WORKER_SLOTS"}
    assert {"BIND_HOST", "LOG_LEVEL", "SHUTDOWN_TIMEOUT_MS"} <= shared
    assert all(told[0][one] == told[1][one] for one in shared)


def test_lists_are_multiplied_and_equal_cells_are_measured_once(tmp_path: Path) -> None:
    cells = [{"callers": [1, 8], "work_ms": [0, 5]}, {"callers": 8}]
    loads = written(tmp_path, base={"payload_bytes": 9}, cells=cells).loads()
    assert [(one["callers"], one["work_ms"]) for one in loads] == [(1, 0), (1, 5), (8, 0), (8, 5)]
    assert {one["payload_bytes"] for one in loads} == {9}


@pytest.mark.req("tq:NFR-2")
def test_options_change_the_load_without_a_change_of_code() -> None:
    said = ["callers=5,7", "work_ms=20", "mix={submit: 3, cancel: 1}", "seconds=2", "repetitions=1"]
    profile = load("parity").with_(dict(map(setting, said)), ["nodes"])
    assert [one.topology for one in profile.shapes()] == ["nodes"]
    loads = profile.loads()
    assert {one["callers"] for one in loads} == {5, 7}
    assert {one["work_ms"] for one in loads} == {20}
    assert {tuple(one["mix"].items()) for one in loads} == {
        ((Method.SUBMIT, 3), (Method.CANCEL, 1))
    }
    assert (profile.seconds, profile.repetitions) == (2, 1)


def test_a_topology_that_the_profile_lacks_can_be_asked_for() -> None:
    profile = load("smoke").with_({}, ["replicated"])
    assert [one.topology for one in profile.shapes()] == ["replicated"]


def test_the_seed_is_the_same_for_every_topology_and_another_for_every_load() -> None:
    profile = load("parity")
    seeds = [
        [profile.seed_of(cell, 1) for cell in profile.cells_of(shape, RunPlace.PROCESSES)]
        for shape in profile.shapes()
    ]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == len(seeds[0])
    first = profile.cells_of(profile.shapes()[0], RunPlace.PROCESSES)[0]
    assert profile.seed_of(first, 2) not in seeds[0]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"secnds": 1}, "secnds"),
        ({"seconds": 0}, "$.seconds"),
        ({"cells": [{"callers": 0}]}, "$.callers"),
        ({"cells": [{"caller": 1}]}, "caller"),
        ({"cells": [{"mix": {"sumbit": 1}}]}, "sumbit"),
        ({"cells": [{"mix": {"status": 1}}]}, "submit must be above 0"),
        ({"cells": [{"key_ratio": 2}]}, "$.key_ratio"),
        ({"cells": [{"batch": 10}]}, "nodes accepts one job"),
        ({"topologies": ["embedded"], "cells": [{"batch": 2, "key_ratio": 1}]}, "a key names one"),
        ({"topologies": ["node"]}, "allowed: embedded"),
        ({"cells": [{"rows": 10}]}, "only the replicated topology"),
        ({"cells": [{"pressure": "scans"}]}, "only the replicated topology"),
        ({"cells": [{"pressure": "much"}]}, "'much'"),
        ({"topologies": []}, "no cells"),
        ({"topologies": [{"topology": "nodes", "workers": 3}]}, "equal numbers of servers"),
        ({"topologies": [{"topology": "embedded", "servers": 2}]}, "one server"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(
    tmp_path: Path, document: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        written(tmp_path, **document)
    assert refused.value.message.startswith("profile mine: ")
    assert said in refused.value.message


@pytest.mark.req("tq:FAIR")
@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"cells": [{"slots": 7}]}, "7 cannot be shared equally among 6 workers"),
        (
            {"topologies": ["microservices", {"topology": "nodes", "slots": 12}]},
            "move slots to cells",
        ),
        (
            {"topologies": ["microservices", {"topology": "nodes", "callers": 1}]},
            "move callers to cells",
        ),
    ],
)
def test_a_comparison_that_is_not_fair_is_refused(
    tmp_path: Path, document: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        written(tmp_path, **document)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("given", "said"),
    [("callers", "is not NAME=VALUE"), ("=1", "is not NAME=VALUE"), ("mix={", "not valid YAML")],
)
def test_a_setting_that_is_none_is_refused(given: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        setting(given)


def test_an_unknown_factor_names_those_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown factor 'speed'; .*callers.*seconds"):
        load("parity").with_({"speed": 1})


def test_an_unknown_profile_names_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"allowed: .*parity.*smoke"):
        load("parit")
    with pytest.raises(NotFound, match="cannot read"):
        load(str(tmp_path / "none.yml"))
