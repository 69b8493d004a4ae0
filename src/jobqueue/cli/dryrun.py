"""Implement ``jq-server --dry-run``: it checks settings and connections, and changes nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import typer

from jobqueue import logs
from jobqueue.api import listening
from jobqueue.cli.appload import load_registry
from jobqueue.cli.display import print_table
from jobqueue.cli.program import run_async
from jobqueue.config import Loaded, Settings
from jobqueue.core.errors import JobQueueError
from jobqueue.core.observer import Observer
from jobqueue.redaction import redact, redact_value

OK = "ok"
FAILING = "failing"
NOT_CONFIGURED = "not configured"
_TIMEOUT = 10.0

Check = tuple[str, str, str]


def dry_run(loaded: Loaded) -> int:
    """Print the settings and the results of the checks; return 1 if a check failed, else 0."""
    print_table(("SETTING", "VALUE", "SOURCE"), [list(row) for row in loaded.shown()], "")
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    checks = run_async(_checks(loaded.settings))
    typer.echo()
    print_table(("CHECK", "RESULT", "DETAIL"), [list(check) for check in checks], "")
    failed = sum(result == FAILING for _, result, _ in checks)
    typer.echo()
    typer.echo(f"{failed} of {len(checks)} checks failed" if failed else "All checks passed")
    return 1 if failed else 0


async def _checks(settings: Settings) -> list[Check]:
    from jobqueue.server import options

    return [
        ("settings", OK, "valid"),
        await _store(settings),
        await _redis(settings),
        await _kafka(settings),
        await _port("http", settings.http.enabled, options.endpoint(settings, "http")),
        await _port("grpc", settings.grpc.enabled, options.endpoint(settings, "grpc")),
        _app(settings),
        _access(settings),
        _audit(settings),
    ]


async def _store(settings: Settings) -> Check:
    from jobqueue.connect.backends import create_store
    from jobqueue.connect.urls import STORES, parse_url
    from jobqueue.server import connectivity, options

    url = redact_value(settings.db.url)
    try:
        address = parse_url(settings.db.url, "db.url", STORES)
        path = address.path
        if path is not None and not path.exists():
            return _new_file(path)
        if address.scheme == "postgresql":
            found = await connectivity.postgres(options.db_url(settings), _TIMEOUT, "db.url")
            return "store", OK, f"{url} ({found})"
        store = create_store(options.db_url(settings), field="db.url")
        try:
            async with asyncio.timeout(_TIMEOUT):
                await store.open()
                await store.ping()
        finally:
            await store.close()
    except JobQueueError as error:
        return "store", FAILING, redact(error.message)
    except TimeoutError:
        return "store", FAILING, f"{url}: no answer within {_TIMEOUT:g} s"
    return "store", OK, f"{url} ({'durable' if store.durable else 'not durable'})"


async def _redis(settings: Settings) -> Check:
    from jobqueue.connect.urls import parse_url
    from jobqueue.server import options

    url = settings.redis.url
    if not url:
        return "redis", NOT_CONFIGURED, ""
    try:
        locks = options.locks(settings, Observer())
        if parse_url(settings.db.url, "db.url").scheme != "postgresql":
            return "redis", NOT_CONFIGURED, "not used: only a store on PostgreSQL needs it"
    except JobQueueError as error:
        return "redis", FAILING, redact(error.message)
    assert locks is not None
    try:
        await locks.open()
        health = locks.health()
    finally:
        await locks.close()
    return "redis", OK if health.ok else FAILING, health.detail


async def _kafka(settings: Settings) -> Check:
    from jobqueue.server import stream

    try:
        stream.check_dispatch(settings, settings.db.url, "db.url")
        if not settings.kafka.bootstrap:
            return "kafka", NOT_CONFIGURED, ""
        found = await stream.check(settings, _TIMEOUT)
    except JobQueueError as error:
        return "kafka", FAILING, redact(error.message)
    return "kafka", OK, f"{redact_value(settings.kafka.bootstrap)} ({found})"


def _new_file(path: Path) -> Check:
    """Check whether jq-server could create a database file, without creating the file."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return "store", FAILING, f"{path}: cannot be created in {folder}"
    return "store", OK, f"{path} would be created (durable)"


async def _port(name: str, enabled: bool, endpoint: listening.Endpoint) -> Check:
    if not enabled:
        return name, NOT_CONFIGURED, ""
    try:
        await listening.check(endpoint)
    except JobQueueError as error:
        return name, FAILING, error.message
    return name, OK, str(endpoint)


def _app(settings: Settings) -> Check:
    from jobqueue.server.options import pool_concurrency

    reference = settings.worker.app
    try:
        registry = load_registry(reference)
    except JobQueueError as error:
        return "app", FAILING, error.message
    if registry is None:
        try:
            pool = pool_concurrency(settings)
        except JobQueueError:
            pool = settings.worker.concurrency  # the check of the store shows the error
        what = "built-in tasks only" if pool else "no built-in pool: jobs wait for a jq-worker"
        return "app", NOT_CONFIGURED, what
    return "app", OK, f"{reference}: {', '.join(registry.names())}"


def _access(settings: Settings) -> Check:
    from jobqueue.server import security

    try:
        access = security.access(settings)
        tls = security.server_tls(settings)
        security.check_exposure(settings, access, tls)
    except JobQueueError as error:
        return "access", FAILING, error.message
    known = "callers must be known" if access.required else "open to everybody who can connect"
    return "access", OK, f"{known}, {'TLS' if tls else 'no TLS'}"


def _audit(settings: Settings) -> Check:
    file = settings.log.audit_file
    if not file:
        return "audit", NOT_CONFIGURED, "part of the log"
    try:
        logs.check_audit_file(file)
    except JobQueueError as error:
        return "audit", FAILING, error.message
    return "audit", OK, file
