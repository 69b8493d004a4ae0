"""Texts from callers, workers and handlers stay texts on a page, and never become HTML.

``Page.check`` refuses every page with an element or attribute that could run a script.
"""

from __future__ import annotations

import json

import pytest

from jobqueue.core.job import JobSpec
from jobqueue.core.queue import QueueUpdate
from jobqueue.server.process import ServerProcess
from tests.console.person import Page, at
from tests.console.played import Played

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</textarea></pre></title><svg onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- --><![CDATA[",
    "&lt;b&gt; &amp; ﷽ 名前",
]


def shows(page: Page, text: str) -> None:
    """The page shows the text unchanged, and none of it became HTML."""
    said = "".join(f" {value}" for _, attributes in page.tags for value in attributes.values())
    assert text in page.text + said, (page.answer.url, text)
    for tag, attributes in page.tags:
        assert tag != "svg" or "onload" not in attributes
        assert attributes.get("src") != "x"


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_texts_are_only_text_on_every_page(server: ServerProcess, text: str):
    backend = server.backend
    content = json.dumps({text: text}, ensure_ascii=False).encode()
    first, second, _ = await backend.submit(
        [
            JobSpec(payload=content, type=text, labels={text[:60]: text}, key=text, max_retries=0),
            JobSpec(payload=content, type=text, max_retries=0),
            JobSpec(payload=f"not JSON {text}".encode(), type=text),
        ]
    )
    worker = Played(server, id=text, types=frozenset({text}), hostname=text)
    async with worker as played, at(server) as person:
        await played.fail(text, f"{text}\n  {text}")
        await played.succeed(text, content)
        running, lease = await played.take(text)
        played.progress(lease, 0.5, text)
        page = await person.open(f"/ui/jobs/{running}")
        assert "Why it does not run" not in page.html
        await backend.update_queue("default", QueueUpdate(max_running=1))
        [waiting] = await backend.submit([JobSpec(payload=content, type=text)])
        why = await person.open(f"/ui/jobs/{waiting.job_id}")
        assert "MAX_RUNNING" in why.text
        [unknown] = await backend.submit([JobSpec(payload=content, type=f"{text}?")])
        why = await person.open(f"/ui/jobs/{unknown.job_id}")
        assert "NO_WORKER_FOR_TYPE" in why.text
        shows(why, f"{text}?")
        for path in (
            "/ui/dlq?reason=ALL",
            "/ui/jobs",
            f"/ui/jobs/{first.job_id}",
            f"/ui/jobs/{second.job_id}",
            f"/ui/jobs/{running}",
            f"/ui/submit?from={first.job_id}",
            "/ui/workers",
        ):
            shows(await person.open(path), text)
        page = await person.open(f"/ui/submit?from={first.job_id}")
        assert page.form("Submit the job").fields["type"] == text
        for field in ("queue", "type", "error", "since", "reason", "status"):
            shows(Page(await person.client.get("/ui/jobs", params={field: text})), text)
        for path in ("/ui/queues", "/ui/login"):
            given = {"name": text, "next": text, "did": text}
            Page(await person.client.get(path, params=given))
        for path in (f"/ui/queues/{text}", f"/ui/jobs/{text}", f"/ui/{text}"):
            answer = await person.client.get(path.replace("%", "%25").replace("{", "%7b"))
            assert answer.status_code in (400, 404)
            Page(answer)
        for field in ("queue", "type", "error", "since", "reason"):
            shows(Page(await person.client.get("/ui/dlq", params={field: text})), text)
        await person.open("/ui/queues")
        shows(await person.press("Create the queue", name=text, ttl=text), text)


async def test_unpaired_surrogates_and_controls_do_not_break_a_page(server: ServerProcess):
    payload = b'{"text": "\\ud800 \\u0000 \\u001b[31m"}'
    [made] = await server.backend.submit([JobSpec(payload=payload, type="t", max_retries=0)])
    async with Played(server) as played, at(server) as person:
        await played.fail("t", "bad \ud800 \x00 \x1b[31m \x85 text")
        page = await person.open(f"/ui/jobs/{made.job_id}")
        assert page.status == 200
        assert "\\ud800" in page.text
        assert (await person.open("/ui/jobs")).status == 200
