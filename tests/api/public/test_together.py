"""Several faces over one system show the same thing."""

from __future__ import annotations

import base64

import pytest
import pytest_asyncio

from tests.api.public.conftest import FACES, Deployment
from tests.api.public.face import PublicFace, Spec, Submitted
from tests.api.public.hand import Hand
from tests.plain_http import plain_http


@pytest_asyncio.fixture
async def faces(deployment: Deployment):
    drivers = [make(deployment) for make in FACES.values()]
    yield drivers
    for driver in drivers:
        await driver.close()


async def test_what_one_face_accepts_every_face_shows(faces: list[PublicFace], hand: Hand) -> None:
    for here in faces:
        spec = Spec(payload=b'{"a" : 1}', key=here.name, type="t", labels={"x": "y"}, priority=3)
        submitted = await here.submit(spec)
        await hand.run(b'{"r" : 2}')
        shown = [await there.get(submitted.job_id) for there in faces]
        for seen in shown:
            assert (seen.payload, seen.result, seen.state) == (b'{"a" : 1}', b'{"r" : 2}', "DONE")
            assert seen.created_at == pytest.approx(shown[0].created_at, abs=0.002)
            seen.created_at = shown[0].created_at
            seen.started_at, seen.completed_at = shown[0].started_at, shown[0].completed_at
            assert seen == shown[0]
        for there in faces:
            assert await there.submit(spec) == Submitted(submitted.job_id, duplicate=True)


@pytest.mark.req("jq:FR-007")
async def test_bytes_that_are_not_json_survive_every_face(
    deployment: Deployment, faces: list[PublicFace], hand: Hand
) -> None:
    content = b"\x00\xff{not json"
    by_name = {face.name: face for face in faces}
    submitted = await by_name["grpc"].submit(Spec(payload=content))
    assert (await hand.run(content)).payload == content
    for face in faces:
        seen = await face.get(submitted.job_id)
        assert (seen.payload, seen.result) == (content, content)
    url = f"http://127.0.0.1:{deployment.http_ports[0]}/jobs/{submitted.job_id}"
    async with plain_http() as http:
        body = (await http.get(url)).json()
    assert base64.b64decode(body["payload_base64"]) == content
