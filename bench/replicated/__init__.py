"""The replicated topology measured: real programs on a PostgreSQL with fsync on, and a Redis."""
