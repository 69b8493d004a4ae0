"""Whatever a body or a URL calls its fields, it takes a server no longer than its bytes do."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.hostile.target import Target, headers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

# Begins as msgspec ends its messages, so often that a search from each beginning takes half a
# minute. The line breaks keep such a search from an early end.
NAME = "\n" + " - at `$" * 24_000 + "\n"


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
def test_a_field_may_be_called_anything(target: Target, path: str):
    job = {"payload": 1, NAME: 1}
    body = json.dumps({"jobs": [job]} if path.endswith("batch") else job)
    before = target.cpu_seconds()
    status, told = target.ask("POST", path, headers("client"), body)
    assert target.cpu_seconds() - before < 5
    assert status == 400
    assert b"unknown field; allowed: payload" in told
    assert len(told) < 4096, "the name is not told in full"


@pytest.mark.parametrize("path", ["/jobs", f"/jobs/{uuid.UUID(int=7)}", "/healthz"])
def test_a_url_of_many_parameters_costs_little(target: Target, path: str):
    many = "&".join(f"{n:x}=" for n in range(11_000))
    before = target.cpu_seconds()
    answers = [target.ask("GET", f"{path}?{many}", headers("client")) for _ in range(5)]
    assert target.cpu_seconds() - before < 3
    expected = (200, b"ok\n") if path == "/healthz" else (400, b"query: at most 128 parameters")
    for status, told in answers:
        assert status == expected[0]
        assert expected[1] in told


def test_a_url_may_repeat_what_is_allowed(target: Target):
    states = "&".join(["status=PENDING"] * 100)
    assert target.ask("GET", f"/jobs?limit=1&{states}", headers("client"))[0] == 200
