"""A person with a browser without scripts: opens pages, follows links and presses buttons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import httpx

from jobqueue.server.process import ServerProcess
from tests import patience
from tests.hostile.known_callers import key_of

# Elements without an end tag.
_SINGLE = {"meta", "link", "input", "img", "br", "hr", "wbr"}
# What may run a script. Pages have their one script with its nonce, and no handler.
_BLOCKED = {"iframe", "object", "embed", "base", "style"}


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    words: str = ""  # on its button


class Page(HTMLParser):
    """A page that was answered, with its forms, links and text."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.answer = answer
        self.status = answer.status_code
        self.html = answer.text
        self.forms: list[Form] = []
        self.links: dict[str, str] = {}  # by their words
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self._href = ""
        self._words = ""
        self._area = ""
        self._choice = ""
        self._option: str | None = None
        if answer.headers.get("content-type", "").startswith("text/html"):
            self.feed(self.html)
            assert not self._open, f"not closed: {self._open}"
            self.check()

    def check(self) -> None:
        """Fail on an element that could run a script: a job, a name or an error made it."""
        scripts = [attributes for tag, attributes in self.tags if tag == "script"]
        nonce = scripts[0]["nonce"]
        policy = self.answer.headers["content-security-policy"]
        assert f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert [
            (s["type"], (s["src"] or "").split("?")[0].rpartition("/")[2]) for s in scripts
        ] == [("module", "console.js")]
        for tag, attributes in self.tags:
            assert tag not in _BLOCKED, tag
            for name, value in attributes.items():
                assert not name.startswith("on"), (tag, name)
                assert name not in ("style", "srcdoc", "formaction"), (tag, name)
                if name in ("href", "src", "action"):
                    assert not (value or "").strip().lower().startswith("javascript:")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in _SINGLE:
            self._open.append(tag)
        if tag == "form":
            self.forms.append(Form(given.get("action") or "", given.get("method") or "get"))
        elif tag == "input" and self.forms and "form" in self._open:
            kind, name = given.get("type"), given.get("name")
            if name and (kind not in ("checkbox", "radio") or "checked" in given):
                self.forms[-1].fields[name] = given.get("value") or (
                    "on" if kind == "checkbox" else ""
                )
        elif tag == "textarea":
            self._area = given.get("name") or ""
            self.forms[-1].fields[self._area] = ""
        elif tag == "select" and self.forms:
            self._choice = given.get("name") or ""
            self.forms[-1].fields.setdefault(self._choice, "")
        elif tag == "option" and "selected" in given:
            self._option = given.get("value", "")
            if "value" in given:
                self.forms[-1].fields[self._choice] = self._option or ""
        elif tag == "a":
            self._href, self._words = given.get("href") or "", ""

    def handle_data(self, data: str) -> None:
        self.text += data
        self._words += data
        if self._open and self._open[-1] == "textarea":
            # Browsers leave out a newline at the beginning.
            self.forms[-1].fields[self._area] += data.removeprefix("\n")
        elif self._open and self._open[-1] == "option" and self._option is None:
            pass
        elif self._open and self._open[-1] == "option" and not self._option:
            self.forms[-1].fields[self._choice] = data
        elif self._open and self._open[-1] == "button" and self.forms:
            self.forms[-1].words = data.strip()

    def handle_endtag(self, tag: str) -> None:
        assert self._open
        assert self._open.pop() == tag, (tag, self._open)
        if tag == "a" and self._href:
            self.links[" ".join(self._words.split())] = self._href
            self._href = ""
        elif tag == "option":
            self._option = None

    def form(self, words: str, action: str = "") -> Form:
        """The form with that button."""
        found = [f for f in self.forms if f.words == words and f.action.endswith(action)]
        assert found, f"no button {words!r}; there are {sorted({f.words for f in self.forms})}"
        return found[0]

    @property
    def buttons(self) -> set[str]:
        """The words on the buttons that change something."""
        return {form.words for form in self.forms if form.method == "post"}


class Person:
    """A person with a browser that shows a page."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.page: Page

    async def open(self, path: str, **headers: str) -> Page:
        """Open an address, and follow redirects as a browser does."""
        return await self._take(await self.client.get(path, headers=headers))

    async def press(self, words: str, action: str = "", **changes: str) -> Page:
        """Press the button on this page, with other values in some fields."""
        form = self.page.form(words, action)
        to = urljoin(str(self.page.answer.url), form.action)
        fields = {**form.fields, **changes}
        if form.method == "get":
            return await self._take(await self.client.get(to, params=fields))
        origin = self.client.base_url
        answer = await self.client.post(
            to, data=fields, headers={"Origin": f"{origin.scheme}://{origin.netloc.decode()}"}
        )
        return await self._take(answer)

    async def _take(self, answer: httpx.Response) -> Page:
        while answer.is_redirect:
            answer = await self.client.get(urljoin(str(answer.url), answer.headers["location"]))
        self.page = Page(answer)
        return self.page

    async def log_in(self, name: str) -> Page:
        """Log in with the caller's key."""
        await self.open("/ui/")
        return await self.press("Log in", credential=key_of(name))


@asynccontextmanager
async def at(server: ServerProcess, **options: Any) -> AsyncIterator[Person]:
    """A person with a new browser, without cookies."""
    async with httpx.AsyncClient(
        base_url=server.http_url,
        timeout=patience.longest(20),
        headers={"Accept": "text/html"},
        trust_env=False,
        **options,
    ) as client:
        yield Person(client)
