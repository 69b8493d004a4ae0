"""The pages of jobs: the list with its filter, one job, and submitting by hand."""

from __future__ import annotations

import json

import pytest

from jobqueue.core.job import JobQuery, JobSpec
from jobqueue.core.lifecycle import Reason
from jobqueue.core.queue import QueueSpec
from jobqueue.server.process import ServerProcess
from tests.console.person import Person, at
from tests.console.played import Played
from tests.hostile.known_callers import serving

LONG = 12345678901234567890123


async def test_the_filter_is_in_the_address(stored: ServerProcess):
    backend = stored.backend
    await backend.create_queue(QueueSpec("mail"))
    await backend.submit(
        [JobSpec(payload=b"1", queue="mail", type="send")]
        + [JobSpec(payload=b"1", type="send", max_retries=0)]
        + [JobSpec(payload=b"1", type="other", max_retries=0)] * 2
    )
    async with Played(stored, queues=("default",)) as played:
        await played.fail("send", "Timeout: no answer from <mail>")
        await played.fail("other", "KeyError: 'a'")
        await played.succeed("other")
    async with at(stored) as person:
        for query, expected in {
            "": 4,
            "status=PENDING": 1,
            "status=DEAD_LETTERED&status=DONE": 3,
            "status=dead_lettered&type=send": 1,
            "queue=mail": 1,
            "queue=mail&status=DONE": 0,
            "error=no+answer": 1,
            "reason=RETRIES_EXHAUSTED": 2,
            "reason=RETRIES_EXHAUSTED&error=KeyError&since=1h": 1,
            "until=1h": 0,
        }.items():
            page = await person.open(f"/ui/jobs?{query}")
            found = [link for link in page.links.values() if "jobs/" in link]
            assert len(found) == expected, query
            listed = await person.client.get(f"/jobs?{query.replace('=1h', '=2026-01-01T00:00Z')}")
            if "=1h" not in query:
                assert len(listed.json()["jobs"]) == expected, query
        page = await person.press("Filter", type="send", error="", until="")
        assert page.answer.url.params["type"] == "send"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("status=LOST", "unknown state 'LOST'; allowed: PENDING"),
        ("reason=BAD", "unknown reason 'BAD'; allowed:"),
        ("since=yesterday", "'yesterday' is not a time; allowed: an age (90s, 15m, 2h, 7d)"),
        ("since=1h&until=2h", "must be later than since"),
        ("queue=no%20queue", "is not a queue name"),
        ("page_token=x", "page_token"),
        ("error=" + "x" * 5000, "error:"),
    ],
)
async def test_a_wrong_filter_is_shown_with_the_reason(person: Person, query: str, says: str):
    page = await person.open(f"/ui/jobs?{query}")
    assert page.status == 400
    assert says in page.text
    assert "Filter" in page.text


async def test_pages_hold_while_jobs_arrive(stored: ServerProcess):
    backend = stored.backend
    await backend.submit([JobSpec(payload=b"1", type=f"n-{n:03}") for n in range(120)])
    async with at(stored) as person:
        seen: list[str] = []
        page = await person.open("/ui/jobs?status=PENDING")
        while True:
            seen += [a["title"] or "" for tag, a in page.tags
                     if tag == "span" and (a.get("title") or "").startswith("n-")]  # fmt: skip
            await backend.submit([JobSpec(payload=b"1", type="later")] * 3)
            if "Older" not in page.links:
                break
            page = await person.open(str(page.answer.url.join(page.links["Older"])))
            assert page.answer.url.params.get_list("status") == ["PENDING"]
            assert "Newest" in page.links
        assert seen == [f"n-{n:03}" for n in reversed(range(120))]


async def test_a_job_is_opened_by_its_id(person: Person, server: ServerProcess):
    [made] = await server.backend.submit([JobSpec(payload=b"1")])
    await person.open("/ui/jobs")
    page = await person.press("Open", id=f" {made.job_id} ")
    assert page.answer.url.path == f"/ui/jobs/{made.job_id}"
    page = await person.open("/ui/jobs/00000000-0000-4000-8000-000000000000")
    assert page.status == 404
    page = await person.open("/ui/jobs/no-id")
    assert page.status == 400


async def test_a_job_shows_what_happened_to_it(stored: ServerProcess):
    backend = stored.backend
    content = json.dumps({"order": LONG, "text": "grüße 你好"}, ensure_ascii=False).encode()
    [made] = await backend.submit(
        [JobSpec(payload=content, type="send", labels={"tenant": "acme"}, max_retries=1)]
    )
    async with at(stored) as person:
        page = await person.open(f"/ui/jobs/{made.job_id}")
        assert "It was not given to a worker yet." in page.text
        assert "No connected worker takes jobs from queue 'default'." in page.text
        assert f'"order": {LONG}' in page.text
        assert "grüße 你好" in page.text
        assert "acme" in page.text
        async with Played(stored) as played:
            await played.fail("send", "Timeout: no answer\n  File x, line 1")
            page = await person.open(f"/ui/jobs/{made.job_id}")
            assert "and retry 1 of 1 comes in" in page.text
            assert "next retry:" in page.text
            assert page.text.count("File x, line 1") == 2  # of the job, and of its attempt
            page = await person.press("Retry now")
            assert "The job waits for a worker again" in page.text
            await played.succeed("send", json.dumps({"sent": LONG}).encode())
        page = await person.open(f"/ui/jobs/{made.job_id}")
        assert f'"sent": {LONG}' in page.text
        for word in ("HANDLER_FAILED", "MANUAL_RETRY", "SUCCEEDED", "played-1"):
            assert word in page.text, word
        kept = await person.client.get(f"/ui/jobs/{made.job_id}/payload")
        assert kept.content == content
        assert kept.headers["content-type"] == "application/octet-stream"
        assert kept.headers["content-disposition"].startswith("attachment")
        page = await person.press("Delete the job")
        assert "The job was deleted." in page.text
        assert (await person.open(f"/ui/jobs/{made.job_id}")).status == 404


async def test_a_waiting_and_a_running_job_are_cancelled(stored: ServerProcess):
    backend = stored.backend
    made = await backend.submit([JobSpec(payload=b"1", type="a"), JobSpec(payload=b"1", type="b")])
    async with at(stored) as person, Played(stored) as played:
        job, lease = await played.take("b")
        await person.open(f"/ui/jobs/{made[0].job_id}")
        page = await person.press("Cancel the job")
        assert "The job was cancelled." in page.text
        assert (await backend.get(made[0].job_id)).reason is Reason.CANCELLED
        await person.open(f"/ui/jobs/{job}")
        page = await person.press("Cancel the job")
        assert "its worker was asked to stop it" in page.text
        assert lease in played.cancelled


async def test_a_job_is_submitted_again_with_edits(stored: ServerProcess):
    backend = stored.backend
    content = b'{"order":12345678901234567890123,   "odd spaces": true}'
    spec = JobSpec(
        payload=content, type="send", labels={"a": "b=c"}, key="k-1", timeout=30.0, priority=4,
        concurrency_key="tenant:1",
    )  # fmt: skip
    [made] = await backend.submit([spec])
    async with at(stored) as person:
        await person.open(f"/ui/submit?from={made.job_id}")
        page = await person.press("Submit the job")
        again = await backend.get(page.answer.url.path.rpartition("/")[2])
        assert again.id != made.job_id
        assert again.payload == content  # byte by byte, as it was not changed
        assert (again.type, again.labels, again.timeout) == ("send", {"a": "b=c"}, 30.0)
        assert (again.priority, again.key) == (4, None)
        assert again.spec.concurrency_key == "tenant:1"
        page = await person.open(f"/ui/submit?from={made.job_id}")
        text = page.form("Submit the job").fields["payload"].replace("true", "false")
        page = await person.press(
            "Submit the job",
            payload=text,
            type="other",
            delay="15m",
            labels="x = y\n\nz=",
            key="k-2",
            concurrency_key="",
        )
        changed = await backend.get(page.answer.url.path.rpartition("/")[2])
        assert json.loads(changed.payload) == {"order": LONG, "odd spaces": False}
        assert (changed.type, changed.labels, changed.key) == ("other", {"x": "y", "z": ""}, "k-2")
        assert changed.spec.concurrency_key is None
        assert changed.run_at is not None
        assert changed.run_at - changed.created_at == pytest.approx(900, abs=1)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("payload", '{"a": }', "payload: is not JSON"),
        ("queue", "nowhere", "there is no queue 'nowhere'"),
        ("priority", "10", "priority: 10 is outside 0 to 9"),
        ("priority", "high", "'high' is not a whole number"),
        ("concurrency_key", "k" * 201, "concurrency_key: 1 to 200 characters are allowed"),
        ("timeout", "soon", "is not a number of seconds"),
        ("labels", "no sign", "must have the form NAME=VALUE"),
    ],
)
async def test_a_wrong_submit_is_shown_again_with_the_reason(
    person: Person, server: ServerProcess, field: str, value: str, says: str
):
    await person.open("/ui/submit")
    given = {"payload": '{"kept": 1}', "type": "kept", "queue": "default", field: value}
    page = await person.press("Submit the job", **given)
    assert page.status in (400, 404)
    assert says in page.text
    fields = page.form("Submit the job").fields
    assert {name: fields[name] for name in given} == given
    assert (await server.backend.list_jobs(JobQuery())).jobs == []


async def test_a_large_payload_is_cut_on_the_page_and_whole_in_the_file(stored: ServerProcess):
    large = json.dumps({"text": "x" * (1024 * 1024 - 100), "n": 1}).encode()
    binary = bytes(range(256)) * 512
    made = await stored.backend.submit([JobSpec(payload=large), JobSpec(payload=binary)])
    async with at(stored) as person:
        for one, content, kind in zip(made, (large, binary), ("JSON", "bytes"), strict=True):
            page = await person.open(f"/ui/jobs/{one.job_id}")
            assert len(page.html) < 120_000
            assert "Only the beginning is shown." in page.text
            assert f"{kind}, " in page.text
            kept = await person.client.get(f"/ui/jobs/{one.job_id}/payload")
            assert kept.content == content
            page = await person.open(f"/ui/submit?from={one.job_id}")
            assert "payload" not in page.form("Submit the job").fields
            page = await person.press("Submit the job")
            again = await stored.backend.get(page.answer.url.path.rpartition("/")[2])
            assert again.payload == content


async def test_the_words_of_an_event_are_apart(person: Person, server: ServerProcess):
    [made] = await server.backend.submit([JobSpec(payload=b"1", type="send", max_retries=0)])
    async with Played(server) as played:
        await played.fail("send", "ConnectionError: refused")
    page = await person.open(f"/ui/jobs/{made.job_id}")
    assert "attempt 1 on played-1 ConnectionError: refused" in " ".join(page.text.split())


async def test_a_long_history_is_read_in_parts(person: Person, server: ServerProcess):
    [made] = await server.backend.submit([JobSpec(payload=b"1", type="t")])
    for _ in range(260):
        await server.backend.cancel(made.job_id)
        await server.backend.retry(made.job_id)
    page = await person.open(f"/ui/jobs/{made.job_id}")
    assert "21 older" in page.links
    page = await person.open(str(page.answer.url.join(page.links["21 older"])))
    assert "SUBMITTED" in page.text
    assert not any("older" in words for words in page.links)
    page = await person.open(f"/ui/jobs/{made.job_id}?before=x")
    assert page.status == 400


@pytest.mark.parametrize(("name", "may"), [("guest", False), ("ops", True), ("boss", False)])
async def test_a_caller_without_the_role_client_has_no_submit_form(name: str, may: bool):
    """An operator without the role client manages queues, and submits nothing."""
    async with serving() as server, at(server) as person:
        await person.log_in(name)
        page = await person.open("/ui/jobs")
        assert ("Submit a job" in page.links) == may
        page = await person.open("/ui/submit")
        assert page.status == (200 if may else 403)
