"""Redis: a store for jobs, and locks that advise dispatch on PostgreSQL."""
