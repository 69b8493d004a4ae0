"""Who sits where, and for how long."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jobqueue.api.grpc.seats import Seats
from jobqueue.core.errors import NotFound


def line(live=False):
    return SimpleNamespace(live=live)


def desk(worker_info, id):
    return SimpleNamespace(info=worker_info(id))


def test_only_the_very_incarnation_finds_its_seat(worker_info):
    seats = Seats()
    one = desk(worker_info, "a")
    seats.put(one, line())
    assert seats.find("a", one.info.incarnation, "") is not None
    assert seats.find("a", one.info.incarnation + 1, "") is None
    with pytest.raises(NotFound, match="register"):
        seats.need("b", 1, "")


def test_seats_of_the_long_gone_are_cleared(worker_info):
    now = 0.0
    seats = Seats(lambda: now)
    for id, live in (("gone", False), ("on a stream", True)):
        seats.put(desk(worker_info, id), line(live))
    incarnation = seats.put(desk(worker_info, "beating"), line()).desk.info.incarnation
    now = 500.0
    seats.find("beating", incarnation, "")
    now = 700.0
    seats.put(desk(worker_info, "new"), line())
    assert seats.get("gone") is None
    assert seats.get("on a stream") is not None
    assert seats.get("beating") is not None
    assert len(seats) == 3


def test_a_seat_taken_by_another_is_not_removed(worker_info):
    seats = Seats()
    old = seats.put(desk(worker_info, "a"), line())
    seats.put(desk(worker_info, "a"), line())
    seats.remove(old)
    assert seats.get("a") is not None
