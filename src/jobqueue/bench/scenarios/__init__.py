"""Measure scenarios that no mix of requests shows, such as the drain of a backlog."""
