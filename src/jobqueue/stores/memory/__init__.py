"""Jobs in this process's memory."""

from jobqueue.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
