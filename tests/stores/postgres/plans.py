"""Every statement that a store runs, with the plan that PostgreSQL really took for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from jobqueue.stores.postgres import connections

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
