"""Query parameters, on routes that ask FastAPI for them only where there are some."""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from jobqueue.api.http.params import JobParams, QuickRoute
from tests.api.http.fake import FakeBackend

JOB = {"payload": {"n": 1}}


async def nothing() -> None:
    """A dependency."""


async def test_without_a_query_parameters_have_their_defaults(http: httpx.AsyncClient) -> None:
    plain = await http.post("/jobs", json=JOB)
    told = await http.post("/jobs?view=canonical", json=JOB)
    assert (plain.status_code, told.status_code) == (202, 202)
    assert plain.json().keys() == told.json().keys()
    assert plain.json()["status"] == told.json()["status"]
    path = f"/jobs/{plain.json()['job_id']}"
    assert (await http.get(path)).json() == (await http.get(f"{path}?view=canonical")).json()


@pytest.mark.parametrize("query", ["nonsense=1", "view=", "view=other", "nonsense"])
async def test_a_query_is_read_before_anything_happens(
    http: httpx.AsyncClient, backend: FakeBackend, query: str
) -> None:
    refused = await http.post(f"/jobs?{query}", json=JOB)
    assert refused.status_code == 400
    assert refused.json()["error"]["field"] in ("nonsense", "view")
    assert backend.specs == []


def test_a_quick_route_takes_no_dependencies() -> None:
    router = APIRouter(route_class=QuickRoute)

    async def read(params: JobParams) -> Response:
        return Response()

    with pytest.raises(TypeError, match=r"/guarded: QuickRoute"):
        router.get("/guarded", dependencies=[Depends(nothing)])(read)


def test_a_quick_route_takes_nothing_but_texts_from_its_path() -> None:
    router = APIRouter(route_class=QuickRoute)

    async def read(number: int, request: Request, params: JobParams) -> Response:
        return Response()

    with pytest.raises(TypeError, match=r"/numbers/\{number\}: QuickRoute"):
        router.get("/numbers/{number}")(read)
