"""The pages of queues and of the whole system."""

from __future__ import annotations

import pytest

from jobqueue.core.job import JobSpec
from jobqueue.core.queue import QueueSpec
from jobqueue.server.process import ServerProcess
from tests.console.person import Person, at
from tests.console.played import Played


async def test_the_root_leads_a_browser_to_the_console(person: Person):
    page = await person.open("/")
    assert page.answer.url.path == "/ui/"
    assert page.status == 200
    assert {"Overview", "Queues", "System"} <= set(page.links)
    programs = await person.client.get("/", headers={"Accept": "*/*"})
    assert programs.json()["links"]["console"] == "/ui/"


async def test_the_pages_work_behind_a_path_prefix(person: Person):
    """All addresses on a page are relative."""
    for path in ("/ui/", "/ui/queues", "/ui/queues/default", "/ui/system", "/ui/nowhere/at/all"):
        page = await person.open(path)
        for _, attributes in page.tags:
            for name in ("href", "src", "action"):
                value = attributes.get(name)
                assert value is None or not value.startswith(("/", "http")), (path, value)
        loaded = [a["href"] for tag, a in page.tags if tag == "link"]
        for link in loaded:
            answer = await person.client.get(page.answer.url.join(link or ""))
            assert answer.status_code == 200, link
            assert "immutable" in answer.headers["cache-control"]


async def test_an_operator_creates_changes_pauses_and_deletes_a_queue(stored: ServerProcess):
    backend = stored.backend
    async with at(stored) as person:
        await person.open("/ui/queues")
        page = await person.press(
            "Create the queue", name="mail", max_retries="7", ttl="2h", retry_profile="producer",
            priority_weights="9: 5, 0: 1", key_max_running="4", key_weights="tenant:1=5, *=1",
        )  # fmt: skip
        assert page.answer.url.path == "/ui/queues/mail"
        assert "The queue was created." in page.text
        queue = (await backend.queue_stats("mail")).queue
        assert (queue.max_retries, queue.ttl, queue.retry_profile) == (7, 7200.0, "producer")
        assert queue.priority_weights == {9: 5, 0: 1}
        assert (queue.key_max_running, queue.key_weights) == (4, {"tenant:1": 5, "*": 1})
        assert page.form("Save").fields["key_weights"] == "tenant:1=5,*=1"

        page = await person.press("Save", max_retries="2", ttl="", priority_weights="")
        assert "The settings were saved." in page.text
        queue = (await backend.queue_stats("mail")).queue
        assert (queue.max_retries, queue.ttl, queue.priority_weights) == (2, None, None)
        assert queue.retry_profile == "producer"

        page = await person.press("Pause")
        assert "The queue is paused" in page.text
        assert (await backend.queue_stats("mail")).queue.paused
        page = await person.press("Resume")
        assert not (await backend.queue_stats("mail")).queue.paused

        await backend.submit([JobSpec(payload=b"1", queue="mail")])
        page = await person.open("/ui/queues/mail")
        page = await person.press("Delete the queue", force="")
        assert page.answer.url.path == "/ui/queues"
        assert "mail" not in page.links


async def test_only_what_was_changed_is_saved(person: Person, server: ServerProcess):
    await server.backend.create_queue(QueueSpec("mail", max_retries=7))
    await person.open("/ui/queues/mail")
    form = person.page.form("Save")
    other = {**form.fields, "ttl": "60"}
    await person.press("Save", max_retries="2")
    person.page.form("Save").fields = other  # from before that
    await person.press("Save", max_retries="2")
    queue = (await server.backend.queue_stats("mail")).queue
    assert (queue.max_retries, queue.ttl) == (2, 60.0)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "no spaces allowed", "is not a queue name"),
        ("name", "default", "there is a queue 'default' already"),
        ("max_retries", "many", "'many' is not a whole number"),
        ("ttl", "soon", "is not a number of seconds, or one with a unit (90s, 15m, 2h, 7d)"),
        ("ttl", "0", "ttl: must be more than 0"),
        ("ttl", "nan", "ttl: must be more than 0"),
        ("priority_weights", "9=5", "is not weights by priority"),
        ("priority_weights", "10:5", "is not a priority 0 to 9"),
        ("key_weights", "a:1", "is not weights by key, like tenant:1=5,*=1"),
        ("key_weights", "a=0", "key_weights: a: 0 is not a weight from 1 to 1000000"),
        ("key_max_running", "-1", "key_max_running: "),
        ("retry_jitter", "half", "is not a number from 0 to 1"),
        ("retry_profile", "none", "retry_profile"),
    ],
)
async def test_a_wrong_value_is_shown_again_with_the_reason(
    person: Person, server: ServerProcess, field: str, value: str, says: str
):
    before = await server.backend.list_queues()
    await person.open("/ui/queues")
    given = {"name": "mail", "capacity": "12", field: value}
    page = await person.press("Create the queue", **given)
    assert page.status in (400, 409)
    assert says in page.text
    form = page.form("Create the queue")
    assert form.fields["capacity"] == "12"
    if field != "retry_profile":
        assert form.fields[field] == value
    assert await server.backend.list_queues() == before


async def test_the_list_of_queues_is_bounded_and_searched(person: Person, server: ServerProcess):
    for number in range(203):
        await server.backend.create_queue(QueueSpec(f"q-{number:03}"))
    page = await person.open("/ui/queues")
    assert "The first 200 of 204" in page.text
    page = await person.press("Filter", name="Q-20")
    assert [name for name in page.links if name.startswith("q-")] == ["q-200", "q-201", "q-202"]
    page = await person.press("Filter", name="nothing")
    assert "No queue has “nothing” in its name." in page.text


async def test_the_overview_says_what_an_operator_should_look_at(stored: ServerProcess):
    async with at(stored) as person:
        page = await person.open("/ui/")
        assert "default" in page.links
        backend = stored.backend
        await backend.create_queue(QueueSpec("mail", capacity=1))
        await backend.submit([JobSpec(payload=b"1", queue="mail", type="send")])
        await backend.pause_queue("default")
        async with at(stored) as other:  # what is shown may be a second old
            page = await other.open("/ui/")
            while "Full" not in page.text:
                page = await other.open("/ui/")
    assert "Paused: default." in page.text
    assert "Full, and refusing jobs: mail." in page.text
    assert "In mail jobs wait that no connected worker takes: send." in page.text


async def test_jobs_that_a_limit_holds_back_are_told_of(person: Person, server: ServerProcess):
    backend = server.backend
    await backend.create_queue(QueueSpec("mail", max_running=1))
    await backend.submit([JobSpec(payload=b"1", queue="mail", type="send")] * 3)
    async with Played(server) as played:
        await played.take("send")
        page = await person.open("/ui/queues/mail")
        assert "2 jobs wait because of the limit “Max running”, until a running job ends." in (
            page.text
        )


async def test_the_system_page_shows_settings_without_secrets(keyed: ServerProcess):
    async with at(keyed) as person:
        await person.log_in("ops")
        page = await person.open("/ui/system")
        assert "auth.api_keys" in page.text
        assert "***" in page.text
        assert "key-of-some-length" not in page.html
        answer = await person.client.get(
            "/configuration", headers={"X-API-Key": "ops-key-of-some-length-0123456789"}
        )
        settings = {one["name"]: one for one in answer.json()["settings"]}
        assert settings["auth.api_keys"]["value"] == "***"
        assert settings["worker.concurrency"]["value"] == "0"
        assert "key-of-some-length" not in answer.text
    async with at(keyed) as person:
        await person.log_in("guest")
        page = await person.open("/ui/system")
        assert page.status == 200
        assert "auth.api_keys" not in page.text
