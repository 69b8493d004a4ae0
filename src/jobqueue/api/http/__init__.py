"""Serve the HTTP API: decode requests, call the backend, encode answers."""
