"""The console in a real Chromium: what a person sees and does, and what no page may do.

A console error, a breach of the content security policy and a request to another host fail each
test (``chromium``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from jobqueue.core.job import JobSpec
from jobqueue.core.queue import QueueSpec
from jobqueue.server.process import ServerProcess
from tests import patience
from tests.console.chromium import chromium
from tests.console.played import Played
from tests.hostile.known_callers import key_of
from tests.services.run import Run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
SHORT = 1_000 * patience.longest(30)


@pytest.fixture(autouse=True)
def _browser(services: Run) -> Iterator[None]:
    services.need("chromium")
    expect.set_options(timeout=SHORT)
    yield
    expect.set_options(timeout=None)


async def log_in(page: Page, name: str) -> None:
    await page.get_by_label("API key or token").fill(key_of(name))
    await page.get_by_role("button", name="Log in").click()


async def test_a_job_is_submitted_and_watched_until_it_is_retried(stored: ServerProcess):
    async with chromium(stored.http_url) as browser, Played(stored) as played:
        page = await browser.page()
        await page.goto("/")
        await page.get_by_role("link", name="Jobs").click()
        await page.get_by_role("link", name="Submit a job").click()
        await page.get_by_label("Arguments (JSON)").fill('{"order": 12345678901234567890123}')
        await page.get_by_label("Type").fill("send")
        await page.get_by_label("Max retries").fill("0")
        await page.get_by_role("button", name="Submit the job").click()
        await expect(page.get_by_text("The job was submitted.")).to_be_visible()
        assert "did=" not in page.url  # a reload does not say it again
        await expect(page.get_by_text("12345678901234567890123")).to_be_visible()
        zoned = page.locator("dt:text-is('Submitted') + dd time")
        utc, local = await zoned.get_attribute("title"), await zoned.inner_text()
        assert utc is not None
        assert utc.endswith(" UTC")
        assert utc[11:13] != local[11:13]  # New York has other hours, and the same minutes
        assert utc[14:19] == local[14:19]

        _, lease = await played.take("send")
        await expect(page.locator("h1 .badge")).to_have_text("RUNNING")
        played.progress(lease, 0.5, "half of it")
        await expect(page.get_by_text("half of it")).to_be_visible()
        await played.fail("send", "Timeout: no answer\n  in send, line 7")
        await expect(page.locator("h1 .badge")).to_have_text("DEAD_LETTERED")
        await expect(page.get_by_text("in send, line 7").first).to_be_visible()

        shared = page.url
        other = await browser.page()
        await other.goto(shared)
        await expect(other.locator("h1 .badge")).to_have_text("DEAD_LETTERED")
        await page.get_by_role("button", name="Retry now").click()
        await played.succeed("send", json.dumps("sent").encode())
        await expect(other.locator("h1 .badge")).to_have_text("DONE")


async def test_a_viewer_reads_and_an_operator_pauses_after_a_login(keyed: ServerProcess):
    async with chromium(keyed.http_url) as browser:
        page = await browser.page()
        await page.goto("/ui/queues/default")
        await log_in(page, "guest")
        await expect(page.get_by_role("heading", name="default")).to_be_visible()
        assert await page.get_by_role("button").all_inner_texts() == ["Log out"]
        [cookie] = await browser.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/ui")
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_text("You are logged out.")).to_be_visible()

        await page.goto("/ui/queues/default")
        await log_in(page, "ops")
        await page.get_by_role("button", name="Pause").click()
        await expect(page.get_by_text("no worker gets its jobs")).to_be_visible()
        assert (await keyed.backend.queue_stats("default")).queue.paused
        summary = page.locator("summary", has_text="Delete …")
        await summary.click()
        await expect(page.get_by_role("button", name="Delete the queue")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Delete the queue")).to_be_hidden()
        await page.get_by_role("button", name="Resume").click()
        await expect(page.get_by_text("hands out its jobs again")).to_be_visible()


async def test_a_link_of_another_site_is_followed_with_the_session(keyed: ServerProcess):
    async with chromium(keyed.http_url) as browser:
        page = await browser.page()
        await page.goto("/ui/")
        await log_in(page, "ops")
        await expect(page.get_by_role("link", name="Queues", exact=True)).to_be_visible()
        # The name localhost is another site than 127.0.0.1.
        await page.goto(f"{keyed.http_url.replace('127.0.0.1', 'localhost')}/docs")
        browser.bad.clear()  # that page is not the console's
        await page.evaluate("url => { location.href = url }", f"{keyed.http_url}/ui/queues")
        await expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        assert "/login" not in page.url


async def test_an_open_page_follows_one_stream_while_it_is_seen(server: ServerProcess):
    async with chromium(server.http_url) as browser:
        page = await browser.page()
        async with page.expect_request("**/ui/live") as began:
            await page.goto("/ui/queues/default")
        stream = await began.value
        answer = await stream.response()
        assert answer is not None
        assert answer.status == 200
        waiting = page.locator(".tile", has_text="PENDING").locator("b")
        await expect(waiting).to_have_text("0")
        await server.backend.submit([JobSpec(payload=b"1")] * 7)
        await expect(waiting).to_have_text("7")
        hide = """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange')); }"""
        async with page.expect_event("requestfailed", lambda one: one.url == stream.url):
            await page.evaluate(hide, True)
        await server.backend.submit([JobSpec(payload=b"1")])
        async with page.expect_request("**/ui/live"):
            await page.evaluate(hide, False)
        await expect(waiting).to_have_text("8")


async def test_a_page_without_a_stream_looks_for_news_by_itself(server: ServerProcess):
    async with chromium(server.http_url) as browser:
        browser.expected.append("503")
        page = await browser.page()
        await page.route("**/ui/live", lambda route: route.fulfill(status=503))
        await page.goto("/ui/queues/default")
        await server.backend.submit([JobSpec(payload=b"1")] * 7)
        await expect(page.locator(".tile", has_text="PENDING").locator("b")).to_have_text("7")


async def test_5000_dead_letters_are_retried_with_progress(stored: ServerProcess):
    backend = stored.backend
    await backend.create_queue(QueueSpec("mail"))
    await backend.submit([JobSpec(payload=b"1", queue="mail", type="send")] * 5_000)
    assert await backend.delete_queue("mail", force=True) == 5_000
    await backend.create_queue(QueueSpec("mail"))
    async with chromium(stored.http_url) as browser:
        page = await browser.page()
        await page.goto("/ui/dlq?reason=ALL")
        await page.get_by_role("link", name="Retry all that match …").click()
        await expect(page.get_by_text("Retry 5,000 dead letters")).to_be_visible()
        await page.evaluate(
            """() => { window.seen = []; new MutationObserver(() => {
                const bar = document.querySelector('#bulk progress');
                if (bar) window.seen.push(bar.value); })
              .observe(document.querySelector('main'), {childList: true, subtree: true}) }"""
        )
        await page.get_by_role("button", name="Retry them").click()
        await expect(page.get_by_text("5,000 jobs wait for a worker again.")).to_be_visible()
        seen = await page.evaluate("window.seen")
        assert seen
        assert seen == sorted(seen)


@pytest.mark.parametrize(
    "options",
    [
        {"viewport": {"width": 390, "height": 844}},
        {"color_scheme": "dark"},
        {"java_script_enabled": False},
    ],
    ids=["phone", "dark", "no scripts"],
)
async def test_every_page_can_be_read(server: ServerProcess, options: dict):
    long = "x" * 200
    [made] = await server.backend.submit([JobSpec(payload=b'"%b"' % (b"y" * 9_000), type=long)])
    async with Played(server, id="w" * 200) as played, chromium(server.http_url, **options) as b:
        await played.fail(long, long)
        page = await b.page()
        for path in ("", "queues", "queues/default", "jobs", f"jobs/{made.job_id}", "dlq",
                     "schedules", "workers", "system", "submit"):  # fmt: skip
            await page.goto(f"/ui/{path}")
            await expect(page.locator("h1")).to_have_count(1)
            if "java_script_enabled" not in options:
                wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert await page.evaluate(wide) <= 0, path
