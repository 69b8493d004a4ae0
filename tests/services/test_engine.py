"""When there is a container engine to be had, and when not."""

from __future__ import annotations

import os

import pytest

from tests.services import catalog, engine


def test_without_root_there_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_program", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert engine.find_engine() is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert engine.find_engine() is not None


@pytest.mark.parametrize("missing", engine.PROGRAMS)
def test_an_engine_takes_all_of_its_programs(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(engine, "find_program", lambda name: None if name == missing else name)
    assert engine.find_engine() is None


def test_containers_can_be_required() -> None:
    assert catalog.required({catalog.REQUIRE: "kafka,containers"}) == {"kafka", "containers"}
