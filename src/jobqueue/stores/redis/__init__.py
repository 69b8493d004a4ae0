"""Implement a store of jobs in Redis, and locks in Redis that speed up claims on PostgreSQL."""
