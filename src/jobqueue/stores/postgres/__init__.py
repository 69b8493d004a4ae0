"""Jobs in PostgreSQL: the system of record of the replicated topology."""
