"""Make the pictures of the console that README and docs/console.md show: ``make screenshots``.

They show a server in memory that has the jobs of a shop. Ids and times differ from run to run.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import expect

from jobqueue.core.job import JobSpec
from jobqueue.core.queue import QueueSpec
from jobqueue.server.process import ServerProcess
from tests import patience
from tests.console.chromium import chromium
from tests.console.played import Played
from tests.hostile.known_callers import serving
from tests.services.chromium import find_chromium

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MOST = 120_000  # bytes of a picture: they stay in the repository's history for ever
WIDE = {"width": 1280, "height": 690}
PHONE = {"width": 390, "height": 844}

QUEUES = (
    QueueSpec("mail", retry_base=0.5, retry_jitter=0.0),
    QueueSpec("payments"),
    QueueSpec("thumbnails"),
    QueueSpec("search-index"),
    QueueSpec("reports"),
    QueueSpec("partner-webhooks"),
)
# Queue, type, jobs that are done, that fail, that wait at the end, and seconds of an attempt.
JOBS = (
    ("mail", "send_receipt", 412, 9, 37, 0.31),
    ("payments", "capture_payment", 186, 6, 4, 1.24),
    ("thumbnails", "resize_photo", 958, 14, 126, 0.082),
    ("search-index", "index_product", 731, 3, 58, 0.046),
    ("reports", "monthly_report", 12, 0, 3, 48.0),
    ("partner-webhooks", "notify_partner", 264, 22, 19, 0.57),
)
ERRORS = {
    "send_receipt": "SMTPRecipientsRefused: 550 mailbox unavailable (order {n})",
    "capture_payment": "CardDeclined: insufficient funds for order {n}",
    "resize_photo": "UnidentifiedImageError: cannot identify image file 'photo-{n}.heic'",
    "index_product": "KeyError: 'price'",
    "notify_partner": "HTTPStatusError: 503 Service Unavailable after {n} ms",
}
REFUSED = """\
ConnectionRefusedError: [Errno 111] connection to smtp.example.com port 587 failed
Traceback (most recent call last):
  File "shop/mail.py", line 48, in send_newsletter
    async with smtp.connect(timeout=10) as connection:
ConnectionRefusedError: [Errno 111] connection to smtp.example.com port 587 failed"""


def jobs(queue: str, type: str, number: int, max_retries: int = 3) -> list[JobSpec]:
    return [
        JobSpec(
            payload=json.dumps({"order": 48_200 + n}).encode(),
            queue=queue, type=type, max_retries=max_retries,
        )
        for n in range(number)
    ]  # fmt: skip


async def fill(server: ServerProcess, workers: dict[str, Played]) -> str:
    """Fill the queues. Returns the id of a job that runs after two failures."""
    backend = server.backend
    for queue, type, done, _, _, seconds in JOBS:
        await backend.submit(jobs(queue, type, done))
        await workers[queue].succeed_all(done, seconds)
    failures = [one for one in JOBS for _ in range(one[3])]
    random.Random(7).shuffle(failures)  # the bars of the groups are not all alike
    for n, (queue, type, _, _, _, seconds) in enumerate(failures):
        await backend.submit(jobs(queue, type, 1, max_retries=0))
        error = ERRORS[type].format(n=48_311 + 17 * n)
        await workers[queue].fail(type, error, ran_for=seconds)

    newsletter = {"campaign": "november-offers", "segment": "newsletter", "recipients": 1800}
    [made] = await backend.submit(
        [
            JobSpec(
                payload=json.dumps(newsletter).encode(), queue="mail", type="send_newsletter",
                priority=5, max_retries=5, timeout=900,
                labels={"team": "marketing", "region": "eu"},
            )
        ]
    )  # fmt: skip
    for seconds in (10.02, 10.01):
        await workers["mail"].fail("send_newsletter", REFUSED, ran_for=seconds)
    _, lease = await workers["mail"].take("send_newsletter")
    workers["mail"].progress(lease, 0.62, "1,116 of 1,800 recipients")
    for queue, type, _, _, waiting, _ in JOBS:
        await backend.submit(jobs(queue, type, waiting))
        if queue != "partner-webhooks":
            for _ in range(2):
                await workers[queue].take(type)
    await backend.pause_queue("partner-webhooks")
    return made.unwrap()


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[ServerProcess, str]]:
    """A server with the shop's jobs and workers, and the id of the job that is shown."""
    async with AsyncExitStack() as stack:
        # These workers beat on request only.
        server = await stack.enter_async_context(
            serving(known=False, worker__heartbeat_timeout="3600")
        )
        workers: dict[str, Played] = {}
        for n, queue in enumerate(QUEUES):
            await server.backend.create_queue(queue)
            workers[queue.name] = await stack.enter_async_context(
                Played(
                    server, id=f"{queue.name}-worker-1", queues=(queue.name,), slots=4,
                    hostname=f"shop-{n + 1}",
                )
            )  # fmt: skip
        yield server, await fill(server, workers)


async def take(server: ServerProcess, path: str, name: str, **options: Any) -> None:
    """Save the picture of a page."""
    async with chromium(server.http_url, **options) as browser:
        page = await browser.page()
        await page.goto(f"/ui/{path}")
        await expect(page.locator("h1")).to_have_count(1)
        picture = PICTURES / f"console-{name}.png"
        made = await page.screenshot(animations="disabled")
        if len(made) > MOST:
            raise SystemExit(f"{picture} would have {len(made):,} bytes; at most {MOST:,} are kept")
        picture.write_bytes(made)
        print(f"{picture} {len(made):,} bytes")


async def main() -> None:
    if find_chromium() is None:
        raise SystemExit("There is no chromium in PATH. On Debian: apt-get install chromium")
    expect.set_options(timeout=1_000 * patience.longest(30))
    async with shop() as (server, job_id):
        await take(server, "", "overview", viewport=WIDE)
        await take(server, f"jobs/{job_id}", "job", viewport={"width": 1280, "height": 1080})
        await take(server, "dlq", "dead-letters-dark", viewport=WIDE, color_scheme="dark")
        await take(server, "", "phone", viewport=PHONE)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
