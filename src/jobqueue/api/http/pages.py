"""Serve the pages for browsers: the list of links (``/``) and the API's description (``/docs``).

This server sends all files itself; the package fastapi-swagger contains the files of Swagger UI.
The pages work without the Internet, and no foreign script runs on the API's origin. Links are
relative, so they also work behind a proxy with a path prefix.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib import resources
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from jobqueue.api.http.context import ApiContext, reply
from jobqueue.api.http.errors import JSON
from jobqueue.api.http.settings import CONSOLE

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY}
# The files change only with the package, which needs a restart.
_ASSET_HEADERS = {**_HEADERS, "Cache-Control": "public, max-age=3600"}
_START = (
    'SwaggerUIBundle({url: "openapi.json", dom_id: "#description", deepLinking: true,'
    " validatorUrl: null});\n"
)
_STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
table { border-collapse: collapse } td { padding: .15em 1em .15em 0; vertical-align: top }
"""
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
{head}
</head>
<body>
{body}
</body>
</html>
"""


def page_routes(app: FastAPI, context: ApiContext) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    # All answers share one text, because any caller may request it many times.
    @cache
    def description() -> bytes:
        return msgspec.json.encode(app.openapi())

    @cache
    def docs_page() -> bytes:
        head = f"<style>{_STYLE}</style>"
        body = f'<div id="description">\n{_plain(app.openapi())}\n</div>'
        if _asset("swagger-ui.css"):
            head = '<link rel="stylesheet" href="docs/swagger-ui.css">'
            body += '\n<script src="docs/swagger-ui-bundle.js"></script>'
            body += '\n<script src="docs/start.js"></script>'
        return _html(f"{app.title}: API", head, body)

    @router.get("/")
    async def index(request: Request) -> Response:
        links = _links(context)
        headers = {**_HEADERS, "Vary": "Accept"}
        is_person = _wants_html(request.headers.get("accept", ""))
        if is_person and context.settings.console:
            return RedirectResponse(f"{CONSOLE[1:]}/", 303, headers)
        if not is_person:
            paths = {name: path for name, path, _ in links}
            index = {"name": app.title, "version": app.version, "links": paths}
            return reply(index, headers=headers)
        rows = "\n".join(
            f'<tr><td><a href="{escape(path.removeprefix("/"))}">{escape(path)}</a></td>'
            f"<td>{escape(text)}</td></tr>"
            for _, path, text in links
        )
        body = f"<h1>{escape(app.title)} {escape(app.version)}</h1>\n<table>\n{rows}\n</table>"
        return HTMLResponse(_html(app.title, f"<style>{_STYLE}</style>", body), headers=headers)

    @router.get("/docs")
    async def docs() -> Response:
        return HTMLResponse(docs_page(), headers=_HEADERS)

    async def openapi(_: Request) -> Response:
        return Response(description(), media_type=JSON)

    router.add_route("/openapi.json", openapi, include_in_schema=False)  # HEAD as well

    @router.get("/docs/start.js")
    async def start() -> Response:
        return Response(_START, 200, _ASSET_HEADERS, _ASSETS["swagger-ui-bundle.js"])

    def serve(name: str, kind: str) -> None:
        @router.get(f"/docs/{name}")
        async def asset() -> Response:
            return Response(_asset(name), 200, _ASSET_HEADERS, kind)

    for name, kind in _ASSETS.items():
        serve(name, kind)
    return router


@cache
def _asset(name: str) -> bytes:
    """Return a file of Swagger UI; empty if the package fastapi-swagger is not installed.

    The page /docs is then a plain list of routes.
    """
    try:
        return resources.files("fastapi_swagger.resources").joinpath(name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        return b""


def _links(context: ApiContext) -> list[tuple[str, str, str]]:
    console = ("console", f"{CONSOLE}/", "the console: the web page for operators")
    links = [console] if context.settings.console else []
    links += [
        ("docs", "/docs", "the description of the HTTP API"),
        ("openapi", "/openapi.json", "the same for programs (OpenAPI)"),
        ("jobs", "/jobs", "jobs, newest first"),
        ("dead_letters", "/dlq", "dead letters: jobs that ended without success"),
        ("queues", "/queues", "queues with their figures"),
        ("workers", "/workers", "workers"),
        ("status", "/status", "the state of the system"),
        ("ready", "/readyz", "readiness for requests"),
        ("health", "/healthz", "a sign of life of the process"),
    ]
    if context.settings.metrics is not None:
        links.append(("metrics", "/metrics", "metrics for Prometheus"))
    return links


def _wants_html(accept: str) -> bool:
    """Return True if the header ``Accept`` contains text/html, which only browsers send."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return "text/html" in kinds


def _plain(description: dict[str, Any]) -> str:
    """Return the list of routes as HTML, for browsers without scripts.

    In other browsers Swagger UI replaces the list.
    """
    rows = "\n".join(
        f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(str(operation.get('summary', '')))}</td></tr>"
        for path, item in description["paths"].items()
        for method, operation in item.items()
    )
    return (
        f"<h1>{escape(description['info']['title'])} {escape(description['info']['version'])}</h1>"
        f'\n<p>All details: <a href="openapi.json">openapi.json</a></p>\n<table>\n{rows}\n</table>'
    )


def _html(title: str, head: str, body: str) -> bytes:
    return _PAGE.format(title=escape(title), head=head, body=body).encode()
