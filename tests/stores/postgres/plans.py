"""Every statement that a store runs, with the plan that PostgreSQL really took for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jobqueue.stores.postgres import connections

MANY = 120_000
FILL = f"""
INSERT INTO job_record (id, queue, type, payload, priority, max_retries, created_at)
SELECT gen_random_uuid(), 1, 'filling', 'x', 0, 3, 1e9 + n FROM generate_series(1, {MANY}) n;

INSERT INTO job_live (seq, id, queue, kind, prio, ready, state, reason, version, attempt,
                      retry_count, max_retries, updated_at, wake_at)
SELECT seq, id, queue, kind_of(type), 9, CASE WHEN seq % 4 = 1 THEN 1 ELSE 0 END, 1, 1, 1, 0, 0, 3,
       created_at, CASE WHEN seq % 4 <> 1 THEN 4e9 END
FROM job_record WHERE type = 'filling' AND seq % 2 = 1;

INSERT INTO job_ended (seq, completed_at, queue, version, attempt, retry_count, state, reason,
                       cancel)
SELECT seq, created_at, queue, 4, 1, 0, CASE WHEN seq % 100 = 0 THEN 6 ELSE 4 END, 4, false
FROM job_record WHERE type = 'filling' AND seq % 2 = 0 AND (seq % 4 = 2 OR seq % 100 = 0);

INSERT INTO job_done (lo, hi, xid, at, queue, worker, from_state, offs, leases, began, results)
SELECT seq, seq, 1, created_at, 1, 1, 3, ARRAY[seq & 1023], ARRAY[seq], ARRAY[created_at],
       ARRAY['r'::bytea]
FROM job_record WHERE type = 'filling' AND seq % 4 = 0 AND seq % 100 <> 0;

INSERT INTO job_event (seq, xid, at, version, attempt, to_state, reason)
SELECT seq, 1, created_at, 1, 0, 1, 1 FROM job_record WHERE type = 'filling' AND seq % 2 = 0;

INSERT INTO job_steps (lo, hi, xid, at, queue, step)
SELECT seq, seq, 1, created_at, 1, 1 FROM job_record WHERE type = 'filling' AND seq % 2 = 1;

INSERT INTO job_key
SELECT 1, 'old ' || seq, id, 4e9, 'f' FROM job_record WHERE type = 'filling';
"""

BIG = {
    "job_live", "job_ready", "job_held", "job_record", "job_ended", "job_event", "job_steps",
    "job_done", "job_key",
}  # fmt: skip


_OF_THE_LIBRARY = "typeinfo_tree"  # it asks about types, once for each connection


@dataclass
class Plan:
    """One executed statement."""

    query: str
    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    @property
    def scanned(self) -> set[str]:
        """Big tables that were read from end to end."""
        return {
            node["Relation Name"]
            for node in self.nodes()
            if node["Node Type"] == "Seq Scan" and node.get("Relation Name") in BIG
        }

    @property
    def buffers(self) -> int:
        """Pages looked at."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes() if "Index Name" in node}


class Plans:
    """Collects them."""

    def __init__(self) -> None:
        self.seen: list[Plan] = []

    def hear(self, connection: object, message: Any) -> None:
        _, found, plan = message.message.partition("plan:\n")
        said: dict[str, Any] = json.loads(plan) if found else {"Query Text": _OF_THE_LIBRARY}
        if _OF_THE_LIBRARY not in said["Query Text"]:
            self.seen.append(Plan(said["Query Text"], said["Plan"]))

    def named(self, text: str) -> list[Plan]:
        return [plan for plan in self.seen if text in plan.query]


SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "client_min_messages": "log",
}


async def watch(db: Any, monkeypatch: pytest.MonkeyPatch) -> Plans:
    """Of every connection that a store makes from now on."""
    name = await db.fetchval("SELECT current_database()")
    await db.execute("LOAD 'auto_explain'")
    for setting, value in SETTINGS.items():
        await db.execute(f"ALTER DATABASE \"{name}\" SET {setting} = '{value}'")
    plans = Plans()
    plain = connections.connect

    async def connect(*arguments: Any) -> connections.Connection:
        made = await plain(*arguments)
        made.raw.add_log_listener(plans.hear)
        return made

    monkeypatch.setattr(connections, "connect", connect)
    return plans
