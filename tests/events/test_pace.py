"""When the relay leaves the machine to others."""

from __future__ import annotations

from jobqueue.events import pace
from jobqueue.events.pace import Pace


class Machine:
    """A clock, and a processor that one may have to wait for."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0

    def work(self, seconds: float, *, waited: float = 0.0) -> None:
        self.worked += seconds
        self.now += seconds + waited


def paced() -> tuple[Pace, Machine]:
    machine = Machine()
    return Pace(lambda: machine.now, lambda: machine.worked), machine


def test_where_nobody_else_wants_the_processor_it_goes_on():
    one, machine = paced()
    for _ in range(10):
        with one.stretch():
            machine.work(0.002, waited=0.0002)
        assert one.rest(0.05) == 0.0


def test_where_it_has_to_wait_others_come_first():
    one, machine = paced()
    with one.stretch():
        machine.work(0.002, waited=0.002)
    machine.now += 5.0  # outside of a stretch it waits for something else
    assert one.rest(0.01) == 0.04
    with one.stretch():
        machine.work(0.002)
    assert one.rest(0.01) == 0.0  # judged by what was since


def test_it_never_rests_for_long():
    one, machine = paced()
    with one.stretch():
        machine.work(0.001, waited=1.0)
    assert one.rest(10.0) == pace._LONGEST


def test_a_stream_that_stays_behind_takes_its_share():
    one, machine = paced()

    def crowded() -> bool:
        with one.stretch():
            machine.work(0.1, waited=0.1)
        return one.rest(0.01) > 0.0

    while machine.now < pace._PATIENCE - 1:
        assert crowded()
    machine.now += 1.0
    assert not crowded()
    one.caught_up()
    assert crowded()
