"""Limits of tests grow with the load, and still end."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import patience

ROOT = Path(__file__).parents[1]


class Machine:
    """A clock and a load that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.load = 0.0
        monkeypatch.setattr(patience, "_now", lambda: self.now)
        monkeypatch.setattr(patience, "_load", lambda: self.load * patience._CORES)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_on_a_quiet_machine_a_limit_is_what_it_says(machine: Machine) -> None:
    limit = patience.Limit(10)
    machine.now += 9.5
    assert limit.left() == pytest.approx(0.5)
    machine.now += 0.5
    assert limit.over


def test_load_that_comes_later_extends_a_limit(machine: Machine) -> None:
    limit = patience.Limit(10)
    machine.now += 5
    assert not limit.over
    machine.load = 4
    machine.now += 16
    assert limit.left() == pytest.approx(1)
    machine.load = 0
    machine.now += 1
    assert limit.over


def test_a_limit_ends_on_the_busiest_machine(machine: Machine) -> None:
    machine.load = 10_000
    limit = patience.Limit(10)
    machine.now += patience.longest(10) - 1
    assert not limit.over
    machine.now += 1
    assert limit.over


def test_a_setting_is_stretched_by_the_load_up_to_four_times(machine: Machine) -> None:
    assert patience.stretched(2) == 2
    machine.load = 3
    assert patience.stretched(2) == 6
    machine.load = 100
    assert patience.stretched(2) == 8


def test_the_load_is_that_of_the_machine() -> None:
    assert 1 <= patience.slowness() <= patience.MOST
    assert patience._load() > 0


@pytest.mark.skipif(not patience._LOAD.exists(), reason="Linux tells what runs at this moment")
def test_processes_that_run_now_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "loadavg"
    monkeypatch.setattr(patience, "_LOAD", said)
    said.write_text("0.10 0.20 0.30 12/345 6789\n")
    assert patience._load() == 12
    said.write_text("25.50 0.20 0.30 1/345 6789\n")
    assert patience._load() == 25.5


async def test_a_timeout_ends_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_load", lambda: 0.0)
    with pytest.raises(TimeoutError):
        async with patience.timeout(0.01):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await patience.wait_for(asyncio.Event().wait(), 0.01)


async def test_a_timeout_waits_longer_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_STEP", 0.01)
    looked = asyncio.Event()
    looks = 0

    def load() -> float:
        nonlocal looks
        looks += 1
        if looks == 50:
            looked.set()
        return 1e9 if looks < 50 else 0.0

    monkeypatch.setattr(patience, "_load", load)
    monkeypatch.setattr(patience, "MOST", 1e9)
    async with patience.timeout(0.05):
        await looked.wait()


async def test_a_cancel_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.create_task(patience.wait_for(asyncio.Event().wait(), 60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_condition_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    changed, said = threading.Condition(), []

    def say() -> None:
        with changed:
            said.append(1)
            changed.notify_all()

    thread = threading.Thread(target=say)
    with changed:
        thread.start()
        assert patience.wait_on(changed, lambda: said, 60)
    thread.join()
    monkeypatch.setattr(patience, "_load", lambda: 0.0)
    with changed:
        assert not patience.wait_on(changed, lambda: None, 0.01)


def test_a_poll_says_what_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_load", lambda: 0.0)
    assert patience.until(lambda: 7, "seven") == 7
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: eight"):
        patience.until(lambda: None, "eight", 0.01)


# -- the limit of a test ---------------------------------------------------------------------------

HANGING = """
import time, pytest
from tests import patience, plugin_patience

patience._load = lambda: {load}
plugin_patience._STEP = 0.05

@pytest.mark.timeout(0.3)
def test_it():
    began = time.monotonic()
    try:
        time.sleep({asleep})
    finally:
        print("took", time.monotonic() - began)
"""


@pytest.mark.parametrize(
    ("load", "asleep", "passes"),
    [
        ("0.0", 600, False),
        ("2.0 * patience._CORES", 600, False),
        ("1e9", 1.0, True),  # longer than its limit, far shorter than what it gets
    ],
)
def test_a_hung_test_ends_and_a_slow_one_passes(
    tmp_path: Path, load: str, asleep: float, passes: bool
) -> None:
    (tmp_path / "test_it.py").write_text(HANGING.format(load=load, asleep=asleep))
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = signal\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.plugin_patience", "-p", "no:cacheprovider",
         "-p", "no:asyncio", "test_it.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert (ran.returncode == 0) is passes, ran.stdout + ran.stderr
    assert ("Timeout" in ran.stdout) is not passes


def test_examples_of_hypothesis_have_no_deadline() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check


# -- every test waits with patience ----------------------------------------------------------------

TESTS = Path(__file__).parent
# Virtual time runs as fast as the test; a benchmark measures on a machine of its own.
LEFT_OUT = ("bench", "taskqueue/protocols", "patience.py", "test_patience.py")
SHORT = 2.0  # seconds: a shorter limit is one that is meant to fire


def test_no_test_waits_without_patience() -> None:
    """``asyncio.timeout`` and ``asyncio.wait_for`` fire on a busy machine."""
    hasty = [
        f"{path.relative_to(TESTS)}:{call.lineno}"
        for path in TESTS.rglob("*.py")
        if not str(path.relative_to(TESTS)).startswith(LEFT_OUT)
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _is_hasty(call)
    ]
    assert hasty == [], "write patience.timeout and patience.wait_for"


def _is_hasty(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="asyncio"), attr="timeout" | "wait_for"):
            match call.args:
                case [*_, ast.Constant(value=int() | float() as seconds)]:
                    return seconds >= SHORT
                case _:
                    return True
    return False
