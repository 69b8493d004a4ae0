"""Implement the clients of ``taskqueue.v1``, with routing, retries and deadlines."""
