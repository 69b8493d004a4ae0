"""The stores under the suite, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobqueue.core.clock import Clock
from jobqueue.core.store import Rules, Store
from jobqueue.stores.memory import MemoryStore
from jobqueue.stores.sqlite.store import SqliteStore

STORES: dict[str, Callable[[Path, Rules, Clock], Store]] = {
    "memory": lambda path, rules, clock: MemoryStore(rules=rules, clock=clock),
    "sqlite": lambda path, rules, clock: SqliteStore(str(path), rules=rules, clock=clock),
}
