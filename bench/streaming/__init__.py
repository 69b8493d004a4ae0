"""Measurements of the event stream."""
