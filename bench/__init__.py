"""Benchmarks: commands that print what they measured and under which conditions."""
