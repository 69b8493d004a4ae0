"""Numbers that no field can hold are told by the field, and are never a defect of the server."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from jobqueue import JobQueue
from jobqueue.core.errors import InvalidArgument
from tests.hostile.target import Target

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

HUGE = [
    "9" * 400,
    "-" + "9" * 400,
    "9" * 4_000,
    "9" * 10_000,
    "1e400",
    "-1e400",
    "1e-400",
    "0.5e309",
]
OF_A_JOB = ["run_at", "delay", "ttl", "timeout", "priority", "max_retries"]
OF_A_QUEUE = [
    "max_retries",
    "ttl",
    "timeout",
    "capacity",
    "retry_base",
    "retry_max",
    "retry_jitter",
    "retention",
    "dead_letter_retention",
    "max_running",
    "rate",
    "rate_period",
    "rate_burst",
    "key_max_running",
    "key_rate",
    "key_rate_period",
    "key_rate_burst",
]


@pytest.mark.parametrize("number", HUGE)
def test_a_number_of_a_job_or_a_queue(open_target: Target, number: str):
    shown = {"Content-Type": "application/json"}
    asked = [("POST", "/jobs", name, f'{{"payload": 1, "{name}": {number}}}') for name in OF_A_JOB]
    asked += [
        ("POST", "/queues", name, f'{{"name": "q-{name}", "{name}": {number}}}')
        for name in OF_A_QUEUE
    ]
    asked += [("PATCH", "/queues/default", name, f'{{"{name}": {number}}}') for name in OF_A_QUEUE]
    for verb, path, name, body in asked:
        status, told = open_target.ask(verb, path, shown, body)
        if number == "1e-400" and status in (200, 201, 202, 409):
            continue  # it is 0
        assert status == 400, (name, told[:200])
        assert json.loads(told)["error"]["field"] == name
    weights = f'{{"name": "w", "priority_weights": {{"0": {number}}}}}'
    assert open_target.ask("POST", "/queues", shown, weights)[0] == 400


@pytest.mark.parametrize("number", [*HUGE, "nan", "inf", "-inf"])
def test_a_number_of_a_batch_is_wrong_for_its_job_alone(open_target: Target, number: str):
    body = f'{{"jobs": [{{"payload": 1}}, {{"payload": 2, "run_at": {number}}}]}}'
    status, told = open_target.ask(
        "POST", "/jobs/batch", {"Content-Type": "application/json"}, body
    )
    if number in ("nan", "inf", "-inf"):  # no JSON
        assert status == 400
    elif number == "1e-400":
        assert status == 202
    else:
        assert status == 207
        assert json.loads(told)["results"][1]["error"]["field"] == "run_at"


@pytest.fixture(scope="module")
def finished(open_target: Target) -> str:
    """A job that nobody has to wait for."""
    shown = {"Content-Type": "application/json"}
    job = json.loads(open_target.ask("POST", "/jobs", shown, '{"payload": 1}')[1])["job_id"]
    assert open_target.ask("POST", f"/jobs/{job}/cancel", {})[0] == 200
    return str(job)


@pytest.mark.parametrize("number", [*HUGE, "nan", "inf", "-inf", "1" * 5_000])
def test_a_number_in_a_url(open_target: Target, finished: str, number: str):
    tiny = number == "1e-400"  # it is 0
    for verb, path, field, allowed in (
        ("GET", "/dlq", "since", tiny),
        ("GET", "/dlq", "until", tiny),
        ("POST", "/dlq/retry", "since", tiny),
        ("GET", "/jobs", "limit", False),
        ("GET", "/jobs", "page_token", False),
        ("GET", f"/jobs/{finished}/wait", "timeout", tiny),
    ):
        status, told = open_target.ask(verb, f"{path}?{field}={number}", {})
        assert status == (200 if allowed else 400), (field, told[:200])
        if not allowed:
            assert json.loads(told)["error"]["field"] == field


@pytest.mark.parametrize("number", [10**400, -(10**400), math.inf, math.nan])
@pytest.mark.parametrize("name", ["run_at", "delay", "ttl", "timeout"])
async def test_a_number_from_a_program(name: str, number: float):
    app = JobQueue("memory://")
    options: dict[str, Any] = {name: number}
    try:
        with pytest.raises(InvalidArgument, match=name):
            await app.submit("any", 1, **options)
    finally:
        await app.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs", b'{"priority": 1.0, "payload": DEEP}'),
        ("/jobs/batch", b'{"jobs": [{"priority": 1.0, "payload": DEEP}]}'),
        ("/queues", b'{"name": "deep", "capacity": 1.0, "priority_weights": DEEP}'),
    ],
)
@pytest.mark.parametrize("depth", [990, 1_000, 20_000])
def test_a_whole_number_beside_what_is_nested_deeply(
    open_target: Target, path: str, body: bytes, depth: int
):
    """Numbers that are written as 1.0 are read anew, and so was what is beside them."""
    sent = body.replace(b"DEEP", b"[" * depth + b"]" * depth)
    status, told = open_target.ask("POST", path, {"Content-Type": "application/json"}, sent)
    assert status == 400, told[:200]
    assert b"nested too deeply" in told or b"priority_weights" in told
