"""Serve the console: the web page for people who run a queue. It shows the public API's data."""
