"""Wiring of the document's two designs: six services, or everything in each of several nodes."""
