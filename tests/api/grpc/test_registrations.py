"""Whose registration is kept, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jobqueue.api.grpc.registrations import Registration, Registrations
from jobqueue.core.errors import NotFound


def transport(live=False):
    return SimpleNamespace(live=live)


def registration(worker_info, id):
    return Registration(worker_info(id), SimpleNamespace())


def test_only_the_very_incarnation_finds_its_registration(worker_info):
    registrations = Registrations()
    one: Any = registration(worker_info, "a")
    registrations.put(one, transport())
    assert registrations.find("a", one.info.incarnation, "") is one
    with pytest.raises(NotFound, match="register"):
        registrations.need("b", 1, "")


def test_registrations_of_the_long_gone_are_cleared(worker_info):
    now = 0.0
    registrations = Registrations(lambda: now)
    for id, live in (("gone", False), ("on a stream", True)):
        registrations.put(registration(worker_info, id), transport(live))
    beating = registration(worker_info, "beating")
    registrations.put(beating, transport())
    now = 50.0
    registrations.find("beating", beating.info.incarnation, "")
    now = 70.0
    registrations.put(registration(worker_info, "new"), transport())
    assert registrations.get("gone") is None
    assert registrations.get("on a stream") is not None
    assert registrations.get("beating") is not None
    assert len(registrations) == 3


def test_a_registration_that_was_replaced_is_not_removed(worker_info):
    registrations = Registrations()
    old, new = registration(worker_info, "a"), registration(worker_info, "a")
    registrations.put(old, transport())
    registrations.put(new, transport())
    registrations.remove(old)
    assert registrations.get("a") is new
