"""Serve the console: the web page for people who run a queue. It shows what the public API has."""
