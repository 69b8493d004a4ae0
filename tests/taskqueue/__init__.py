"""The task queue document: its parts, its two designs and its public API."""
