"""What version 0.1.0 of commit 8f64846 left behind: stores, the records of one, and what it showed.

The files in ``earlier/`` were written by that version's ``tests/replay/mixed.py``, by one program
for each store: a copy of the SQLite file, ``pg_dump --rows-per-insert``, Redis's ``DUMP`` of every
key that does not expire, and the messages of the SQLite store's topics with their headers.
``STORE.shown`` is what it answered afterwards: jobs, histories, lists, queues, workers, and what
became of submits under keys that were used. Stored data does not change; what a later version
writes gets files of its own.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import lzma
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import redis

from jobqueue.core.job import Job, JobSpec
from jobqueue.events.codec import writer_of
from jobqueue.events.record import Raw

FOLDER = Path(__file__).with_name("earlier")


def kept(name: str) -> bytes:
    """A file of that version."""
    return lzma.decompress((FOLDER / f"{name}.xz").read_bytes())


def shown(store: str) -> dict[str, Any]:
    """What the version showed of a store."""
    found: dict[str, Any] = json.loads(kept(f"{store}.shown.json"))
    return found


def put_sqlite(path: str) -> None:
    """Its file."""
    Path(path).write_bytes(kept("sqlite.db"))


async def put_postgres(dsn: str) -> None:
    """Its database, into an empty one."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(kept("postgres.sql").decode())
    finally:
        await connection.close()


def put_redis(url: str) -> None:
    """Its keys."""
    with redis.Redis.from_url(url) as client:
        for name, dump in json.loads(kept("redis.json")).items():
            client.restore(name, 0, base64.b64decode(dump))


class Topics:
    """Its messages, as ``events.record.Record`` reads them."""

    cut_off: Mapping[str, str] = {}

    def messages(self) -> Iterator[list[Raw]]:
        """All of them, in one page."""
        page = []
        for topic, partition, offset, key, value, at, headers in json.loads(kept("records.json")):
            writer = writer_of([(name, base64.b64decode(text)) for name, text in headers])
            parts = base64.b64decode(key), base64.b64decode(value)
            page.append(Raw(topic, partition, offset, *parts, at, writer))
        yield page


def plain(value: Any) -> Any:
    """A value as that version's answers were written down; a job's spec was part of the job."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if dataclasses.is_dataclass(value):
        said = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        if isinstance(value, Job):
            said |= plain(said.pop("spec"))
        return plain(said)
    if isinstance(value, Mapping):
        return {_name(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return sorted(value) if isinstance(value, frozenset) else value


def _name(key: Any) -> str:
    if isinstance(key, tuple):
        return "/".join(map(str, key))
    return key.name if isinstance(key, enum.Enum) else str(key)


def like(value: Any, said: Any) -> Any:
    """Of a value, the fields that the version knew."""
    if isinstance(said, dict) and isinstance(value, dict):
        return {key: like(one, said.get(key)) for key, one in value.items() if key in said}
    if isinstance(said, list) and isinstance(value, list) and len(said) == len(value):
        return [like(one, other) for one, other in zip(value, said, strict=True)]
    return value


def spec(said: Mapping[str, Any]) -> JobSpec:
    """A spec that was written down."""
    return JobSpec(**{**said, "payload": base64.b64decode(said["payload"]["bytes"])})
