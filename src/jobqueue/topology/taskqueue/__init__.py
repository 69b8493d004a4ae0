"""Wiring of the task queue document's two designs: six processes, or all of it in each node."""
