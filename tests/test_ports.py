"""Ports for tests belong to one process."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ports

TESTS = Path(__file__).parent


def test_a_port_comes_up_again_only_after_all_others() -> None:
    assert len({ports.take() for _ in range(20)}) == 20


def test_a_port_with_a_listener_is_left_out() -> None:
    port = ports.take()
    with socket.create_server(("127.0.0.1", port)):
        assert port not in {ports.take() for _ in range(ports.SIZE)}


def test_a_row_is_free_and_adjacent() -> None:
    base = ports.take(row=5)
    assert all(port in ports.mine().ports for port in range(base, base + 5))
    assert ports.take() not in range(base, base + 5)


def test_every_process_has_a_range_of_its_own() -> None:
    code = "from tests import ports; print(ports.mine().ports.start, flush=True); input()"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=TESTS.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        starts = [other.stdout.readline() for other in others if other.stdout]
    finally:
        for other in others:
            other.communicate("\n")
    assert len({int(start) for start in starts} | {ports.mine().ports.start}) == 4


def test_a_range_is_free_again_when_its_process_has_ended() -> None:
    code = "from tests import ports; print(ports.mine().ports.start)"
    said = subprocess.check_output([sys.executable, "-c", code], cwd=TESTS.parent, text=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", int(said) - 1))


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (32_768, 60_999),  # Linux
        (49_152, 65_535),  # macOS
        (15_000, 65_000),
        (10_240, 65_535),
        (4_000, 60_999),
        (1_024, 60_999),
    ],
)
def test_ports_lie_outside_the_kernels_range(low: int, high: int) -> None:
    found = ports.outside(low, high)
    assert len(found) >= 20 * ports.SIZE
    assert not set(found) & set(range(low, high + 1))
    assert min(found) >= 1_024
    assert max(found) <= 65_535


def test_a_kernel_that_takes_all_ports_leaves_ranges_all_the_same() -> None:
    assert len(ports.outside(1_024, 65_535)) >= 20 * ports.SIZE


def test_no_test_looks_for_a_free_port_by_itself() -> None:
    """Port 0 is for a socket that stays open; a port to pass on is ``ports.take()``."""
    finders = [
        f"{path.relative_to(TESTS)}:{call.lineno}"
        for path in TESTS.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and (
            (call.func.attr == "bind" and _to_port_0(call))
            or (call.func.attr == "free_port" and path.parent.name not in ("fleet", "services"))
        )
    ]
    assert finders == []


def _to_port_0(call: ast.Call) -> bool:
    match call.args:
        case [ast.Tuple(elts=[_, ast.Constant(value=0)])]:
            return True
    return False
