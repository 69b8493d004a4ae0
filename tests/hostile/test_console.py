"""Attacks through the console: forged forms, pages of other sites, callers without the role.

Texts of jobs, names and errors on its pages are in tests/console/test_texts.py.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from jobqueue.access.rules import HTTP, RULES
from jobqueue.api.console.formats import readable
from jobqueue.core.ids import new_job_ids
from jobqueue.core.job import JobSpec
from jobqueue.server.process import ServerProcess
from tests import patience
from tests.console.person import at
from tests.hostile.known_callers import serving
from tests.hostile.test_audit import Lines, audited, told

__all__ = ["audited"]

CHANGES = [path for (verb, path) in HTTP if verb == "POST" and path.startswith("/ui/")]
PAGES = [
    path
    for (verb, path), action in HTTP.items()
    if verb == "GET" and path.startswith("/ui/") and RULES[action].roles is not None
]
CLICK = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


@pytest.fixture(params=[False, True], ids=["asks nobody", "knows callers"])
def known(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest_asyncio.fixture
async def server(known: bool) -> AsyncIterator[ServerProcess]:
    async with serving(known=known) as found:
        yield found


def filled(path: str) -> str:
    return path.format(job_id=new_job_ids(1)[0], name="default")


def plain(server: ServerProcess, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.http_url,
        headers=headers,
        timeout=patience.longest(20),
        trust_env=False,
    )


async def test_a_form_that_another_site_may_have_sent_is_refused(
    server: ServerProcess, known: bool
):
    """Token and session are valid, so only the browser's headers cause the refusal."""
    async with at(server) as person:
        page = await (person.log_in("ops") if known else person.open("/ui/"))
        page = await person.open("/ui/queues/default")
        token = page.form("Pause").fields["token"]
        host = person.client.base_url.netloc.decode()
        cases = [
            {},
            {"Origin": "null"},
            {"Origin": "https://evil.example"},
            {"Origin": f"http://{host}.evil.example"},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
            {"Sec-Fetch-Site": "cross-site", "Origin": f"http://{host}"},
            {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
            {**CLICK},
            {"Origin": f"http://{host}", "Host": "evil.example"} if not known else {},
        ]
        for headers in cases:
            answer = await person.client.post(
                "/ui/queues/default/pause", data={"token": token}, headers=headers
            )
            assert answer.status_code == 403, headers
            assert "PERMISSION_DENIED" in answer.text
        assert not (await server.backend.queue_stats("default")).queue.paused
        for headers in ({"Origin": f"http://{host}"}, {"Sec-Fetch-Site": "same-origin"}):
            answer = await person.client.post(
                "/ui/queues/default/pause", data={"token": token}, headers=headers
            )
            assert answer.status_code == 303, headers


@pytest.mark.parametrize("path", CHANGES)
async def test_every_change_needs_the_token_of_its_caller(
    server: ServerProcess, known: bool, path: str
):
    async with at(server) as person:
        if known:
            await person.log_in("guest")
            page = await person.open("/ui/")
            others = page.form("Log out").fields["token"]
            person.client.cookies.clear()
            await person.log_in("ops")
        else:
            others = "0" * 64
        headers = {"Sec-Fetch-Site": "same-origin"}
        for form in ({}, {"token": ""}, {"token": others}, {"token": "é"}):
            answer = await person.client.post(filled(path), data=form, headers=headers)
            assert answer.status_code == 403, form
            assert "the form is not from a page that this server has sent to you" in answer.text


@pytest.mark.parametrize("path", [*CHANGES, *PAGES])
async def test_nothing_is_shown_or_done_without_a_login(path: str):
    async with serving() as server, plain(server) as client:
        verb = "POST" if path in CHANGES else "GET"
        if (verb, path) == ("POST", "/ui/login"):
            return
        answer = await client.request(
            verb,
            filled(path),
            headers={"Sec-Fetch-Site": "same-origin"},
            data={} if verb == "POST" else None,
        )
        assert answer.status_code == (401 if verb == "POST" else 303)
        if verb == "GET":
            assert "login" in answer.headers["location"]
            assert answer.text == ""


async def test_a_viewer_sees_no_buttons_and_is_refused_without_them(audited: Lines):
    async with serving() as server, at(server) as person:
        await person.log_in("guest")
        audited.take()
        for path in PAGES:
            if path == "/ui/live":
                continue  # a stream: it does not end by itself
            page = await person.open(filled(path))
            assert page.buttons <= {"Log out"}, path
        token = page.form("Log out").fields["token"]
        for path in CHANGES:
            if path in ("/ui/login", "/ui/logout"):
                continue
            answer = await person.client.post(
                filled(path), data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}
            )
            assert answer.status_code == 403, path
            assert "'guest' does not have it" in answer.text.replace("&#39;", "'"), path
        refused = {line["action"] for line in audited.take()}
        assert {"queue.create", "queue.delete", "queue.pause"} <= refused


@pytest.mark.parametrize("path", [path for path in CHANGES if path != "/ui/login"])
async def test_every_action_has_its_line_in_the_audit_log(audited: Lines, path: str):
    """Failed actions have a line, too: here most objects do not exist."""
    async with serving() as server, at(server) as person:
        await person.log_in("ops")
        page = await person.open("/ui/")
        token = page.form("Log out").fields["token"]
        audited.take()
        await person.client.post(
            filled(path), data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}
        )
        (line,) = audited.take()
        assert (line["caller"], line["action"]) == ("ops", HTTP["POST", path])


async def test_every_change_is_in_the_audit_log_with_its_caller(audited: Lines):
    async with serving() as server, at(server) as person:
        await person.open("/ui/")
        await person.press("Log in", credential="a-wrong-key-0123456789")
        await person.log_in("ops")
        await person.open("/ui/queues")
        await person.press("Create the queue", name="mail")
        await person.press("Pause")
        await person.open("/ui/queues")
        await person.press("Create the queue", name="mail")
        await person.open("/ui/queues/mail")
        await person.press("Delete the queue")
        await person.press("Log out")
        assert [told(line) for line in audited.take()] == [
            ("", "server.log_in", "", "UNAUTHENTICATED"),
            ("ops", "server.log_in", "", "OK"),
            ("ops", "queue.create", "mail", "OK"),
            ("ops", "queue.pause", "mail", "OK"),
            ("ops", "queue.create", "mail", "ALREADY_EXISTS"),
            ("ops", "queue.delete", "mail", "OK"),
            ("ops", "server.log_out", "", "OK"),
        ]


async def test_a_link_elsewhere_leads_to_a_page_but_shows_and_frames_nothing(
    server: ServerProcess, known: bool
):
    async with at(server) as person:
        if known:
            await person.log_in("ops")
            cookies = dict(person.client.cookies)
            person.client.cookies.clear()  # the browser does not send it for such a link
            page = await person.open("/ui/queues", **CLICK)
            assert page.status == 200
            assert "default" not in page.text
            assert ("meta", {"http-equiv": "refresh", "content": "0"}) in page.tags
            person.client.cookies.update(cookies)
            page = await person.open("/ui/queues", **{"Sec-Fetch-Site": "same-origin"})
        else:
            page = await person.open("/ui/queues", **CLICK)
        assert "default" in page.links
        for changed in ({"Sec-Fetch-Dest": "iframe"}, {"Sec-Fetch-Mode": "cors"}):
            answer = await person.client.get("/ui/queues", headers={**CLICK, **changed})
            assert answer.status_code == 403
            assert "default" not in answer.text
        assert page.answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert page.answer.headers["cache-control"] == "no-store"


async def test_a_form_is_small_and_is_a_form(server: ServerProcess, known: bool):
    async with at(server) as person:
        await (person.log_in("ops") if known else person.open("/ui/"))
        await person.open("/ui/queues")
        fields = person.page.form("Create the queue").fields
        headers = {"Sec-Fetch-Site": "same-origin"}
        many = {f"field-{n}": "x" for n in range(200)}
        cases = [
            (413, b"a=" + b"x" * 70_000),
            (400, "&".join(f"{name}=x" for name in many).encode()),
            (400, b"\xff=\xff"),
            (400, b"token=%ff"),
            (403, b'{"token": "x"}'),
        ]
        for status, body in cases:
            answer = await person.client.post(
                "/ui/queues",
                content=body,
                headers={**headers, "Content-Type": "application/x-www-form-urlencoded"},
            )
            assert answer.status_code == status, body[:50]
            assert answer.headers["content-type"].startswith("text/html")
        assert fields["token"]


async def test_a_server_without_the_console_has_none():
    async with serving(known=False, http__console="false") as server, plain(server) as client:
        for path in ("/ui", "/ui/", "/ui/queues", "/ui/static/console.js"):
            answer = await client.get(path, headers={"Accept": "text/html"})
            assert answer.status_code == 404
            assert answer.headers["content-type"] == "application/json"
        page = await client.get("/", headers={"Accept": "text/html"})
        assert page.status_code == 200
        assert "console" not in (await client.get("/")).json()["links"]


async def test_a_job_that_is_nested_deeply_is_shown_in_little_memory():
    """Before, 100 kB of arguments took 180 MB on each look at the job's page, and 1 MiB 2 GB."""
    deep = b"[" * 900 + b",".join([b"1"] * 50_000) + b"]" * 900
    async with serving(known=False) as server, at(server) as person:
        (result,) = await server.backend.submit([JobSpec(payload=deep)])
        tracemalloc.start()
        try:
            page = await person.open(f"/ui/jobs/{result.job_id}")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert page.status == 200
    assert most < 10 * 1024 * 1024
    assert "[[[[" in page.text


@pytest.mark.parametrize(
    "content", [b'{"a": [1, {"b": "[[[{"}]}', b'"\\"[["', b"[]", b'[["\\\\", 1], [[]]]']
)
def test_json_that_is_nested_a_little_is_indented(content: bytes):
    kind, text = readable(content)
    assert kind == "JSON"
    assert text == json.dumps(json.loads(content), indent=2)


@pytest.mark.parametrize(
    "before", ["0" * 18 + "1" + "9" * 4_000, "0" * 18 + "1" + "9" * 5_000, "²"]
)
async def test_no_number_in_an_address_is_a_defect(before: str):
    async with serving(known=False) as server, plain(server) as client:
        (result,) = await server.backend.submit([JobSpec(payload=b"1")])
        answer = await client.get(f"/ui/jobs/{result.job_id}", params={"before": before})
        assert answer.status_code == 400
