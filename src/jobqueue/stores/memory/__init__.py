"""Implement ``core.store.Store`` in the memory of this process."""

from jobqueue.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
