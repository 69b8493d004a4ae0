"""What a body calls its fields takes a server no longer than the body has bytes."""

from __future__ import annotations

import json

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
