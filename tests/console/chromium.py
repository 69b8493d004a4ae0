"""A real Chromium on the console's pages. A test fails if a page does what it must not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Page, Request, async_playwright

from tests import patience
from tests.services.chromium import find_chromium

# It looks for no network, and works for root as well.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-features=Translate,OptimizationHints,MediaRouter", "--font-render-hinting=none",
)  # fmt: skip


class Watched:
    """A context of the browser, with the forbidden actions of its pages."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.bad: list[str] = []
        self.expected: list[str] = []  # parts of console errors that a test causes on purpose
        context.on("console", self._said)
        context.on("weberror", lambda error: self.bad.append(f"error: {error.error}"))
        context.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):  # breaches of the policy are errors
            self.bad.append(f"{message.type}: {message.text} ({message.location})")

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).hostname != "127.0.0.1":
            self.bad.append(f"request to {request.url}")

    def check(self) -> None:
        bad = [one for one in self.bad if not any(part in one for part in self.expected)]
        assert not bad, "\n".join(bad)

    async def page(self) -> Page:
        page = await self.context.new_page()
        page.set_default_timeout(1_000 * patience.longest(15))
        return page


@asynccontextmanager
async def chromium(base_url: str, **options: Any) -> AsyncIterator[Watched]:
    """A new browser, in the time zone of New York unless another is given."""
    given: Mapping[str, Any] = {
        "base_url": base_url,
        "timezone_id": "America/New_York",
        "viewport": {"width": 1280, "height": 900},
        **options,
    }
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=list(FLAGS), chromium_sandbox=False
        )
        context = await browser.new_context(**given)
        watched = Watched(context)
        try:
            yield watched
        finally:
            await context.close()
            await browser.close()
        watched.check()
