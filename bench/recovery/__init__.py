"""How long the replicated topology takes to recover from faults: real programs on a PostgreSQL."""
