"""The client of ``taskqueue.v1``: it routes, retries and keeps to deadlines."""
