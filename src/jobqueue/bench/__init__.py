"""Implement ``jq-bench``: generate load, measure, keep records, and write reports."""
