"""Implement a store of jobs in PostgreSQL, which any number of servers may share."""
