"""Redis: locks that advise dispatch on PostgreSQL."""
