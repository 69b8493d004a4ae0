"""The OpenAPI document is complete, and the answers are what it says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from jobqueue._version import __version__
from jobqueue.api.http import answers
from jobqueue.api.http.app import create_app
from jobqueue.api.http.bodies import (
    decode_batch,
    decode_job,
    decode_queue,
    decode_queue_patch,
    decode_schedule,
)
from jobqueue.api.http.settings import HttpFaceSettings
from jobqueue.core.job import JobSpec, Page
from jobqueue.core.schedule import ScheduleSpec
from tests.api.http.conftest import Serve
from tests.api.http.fake import FakeBackend

ROUTES = {
    "/jobs": {"get", "post"},
    "/jobs/batch": {"post"},
    "/jobs/{job_id}": {"get", "delete"},
    "/jobs/{job_id}/cancel": {"post"},
    "/jobs/{job_id}/retry": {"post"},
    "/jobs/{job_id}/events": {"get"},
    "/jobs/{job_id}/explain": {"get"},
    "/jobs/{job_id}/wait": {"get"},
    "/dlq": {"get"},
    "/dlq/retry": {"post"},
    "/dlq/delete": {"post"},
    "/dlq/groups": {"get"},
    "/dlq/{job_id}/retry": {"post"},
    "/queues": {"get", "post"},
    "/queues/{name}": {"get", "patch", "delete"},
    "/queues/{name}/pause": {"post"},
    "/queues/{name}/resume": {"post"},
    "/schedules": {"get", "post"},
    "/schedules/{name}": {"get", "delete"},
    "/schedules/{name}/pause": {"post"},
    "/schedules/{name}/resume": {"post"},
    "/schedules/{name}/run": {"post"},
    "/workers": {"get"},
    "/workers/{worker_id}/drain": {"post"},
    "/workers/{worker_id}/undrain": {"post"},
    "/workers/{worker_id}/shutdown": {"post"},
    "/metrics": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/status": {"get"},
    "/configuration": {"get"},
}


@pytest.fixture
def document() -> dict[str, Any]:
    return create_app(FakeBackend()).openapi()


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def test_every_route_is_there(document: dict[str, Any]) -> None:
    assert {path: set(item) for path, item in document["paths"].items()} == ROUTES


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    found = set(_refs(document))
    assert len(found) > 15
    for reference in found:
        node: Any = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
        assert node


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    names = []
    for path, item in document["paths"].items():
        for operation in item.values():
            names.append(operation["operationId"])
            assert operation["summary"], path
            assert operation["tags"], path
            assert "422" not in operation["responses"], path
            for answer in operation["responses"].values():
                assert answer["description"], path
            if path not in ("/metrics", "/healthz"):
                error = operation["responses"]["default"]["content"]["application/json"]
                assert error["schema"]["$ref"].endswith("/ErrorAnswer")
    assert len(names) == len(set(names))


def test_submit_is_documented(document: dict[str, Any]) -> None:
    submit = document["paths"]["/jobs"]["post"]
    assert {"202", "400", "404", "409", "413", "503"} <= set(submit["responses"])
    assert "Retry-After" in submit["responses"]["503"]["headers"]
    body = document["components"]["schemas"]["JobBody"]
    assert body["required"] == ["payload"]
    assert body["additionalProperties"] is False
    assert set(body["properties"]) == {
        "payload",
        "queue",
        "type",
        "priority",
        "max_retries",
        "ttl",
        "delay",
        "run_at",
        "timeout",
        "idempotency_key",
        "unique",
        "concurrency_key",
        "labels",
    }


def test_the_examples_are_accepted(document: dict[str, Any]) -> None:
    settings = HttpFaceSettings()
    readers: dict[str, Any] = {
        "/jobs": lambda body: decode_job(body, settings),
        "/jobs/batch": lambda body: asyncio.run(decode_batch(body, settings)),
        "/queues": decode_queue,
        "/schedules": lambda body: decode_schedule(body, settings),
    }
    for path, read in readers.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert content["examples"]
        for example in content["examples"].values():
            assert read(msgspec.json.encode(example["value"]))
    patch = document["paths"]["/queues/{name}"]["patch"]["requestBody"]["content"]
    for example in patch["application/json"]["examples"].values():
        assert decode_queue_patch(msgspec.json.encode(example["value"])).said


async def test_answers_are_as_documented(http: httpx.AsyncClient, backend: FakeBackend) -> None:
    job = backend.add()
    backend.page = Page([job])
    await backend.create_schedule(ScheduleSpec(name="s", job=JobSpec(payload=b"1"), every=60))
    for path, shape in {
        f"/jobs/{job.id}": answers.JobView,
        "/jobs": answers.JobPage,
        "/dlq": answers.JobPage,
        f"/jobs/{job.id}/events": answers.HistoryView,
        "/queues": answers.QueueList,
        "/queues/default": answers.QueueView,
        "/schedules": answers.ScheduleList,
        "/schedules/s": answers.ScheduleView,
        "/workers": answers.WorkerList,
        "/status": answers.StatusView,
        "/readyz": answers.Ready,
    }.items():
        response = await http.get(path)
        assert response.status_code == 200
        document: Any = msgspec.json.decode(response.content, type=shape)
        assert msgspec.json.decode(msgspec.json.encode(document)) == response.json(), path


async def test_the_page_needs_nobody_else(http: httpx.AsyncClient) -> None:
    """Nothing is loaded from another origin, and no script stands in the page itself."""
    page = await http.get("/docs")
    assert page.status_code == 200
    assert "//" not in page.text.replace("<!DOCTYPE", "")
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page.text, re.DOTALL)
    assert len(scripts) == 2
    assert all(not inline.strip() for _, inline in scripts)
    for link in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        if link != "data:,":
            asset = await http.get(f"/{link}")
            assert asset.status_code == 200, link
            assert len(asset.content) > 50
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    bundle = await http.get("/docs/swagger-ui-bundle.js")
    assert len(bundle.content) > 1_000_000
    assert bundle.headers["content-type"].startswith("text/javascript")


async def test_the_page_lists_every_route_without_a_script(http: httpx.AsyncClient) -> None:
    text = (await http.get("/docs")).text
    for path in ROUTES:
        assert f"<code>{path}</code>" in text


async def test_the_root_says_what_is_here(serve: Serve) -> None:
    http = await serve(HttpFaceSettings(console=False))
    index = (await http.get("/")).json()
    assert (index["name"], index["version"]) == ("jobqueue", __version__)
    assert index["links"]["docs"] == "/docs"
    page = await http.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["vary"] == "Accept"
    assert "content-security-policy" in page.headers
    linked = {f"/{link}" for link in re.findall(r'<a href="([^"]+)"', page.text)}
    assert linked == set(index["links"].values())
    for link in linked:
        assert (await http.get(link)).status_code == 200, link
    assert (await http.post("/")).status_code == 405


async def test_the_description_is_there(http: httpx.AsyncClient) -> None:
    assert (await http.get("/openapi.json")).json()["info"]["title"] == "jobqueue"
