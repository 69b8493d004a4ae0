"""Implements the SDK whose entry point is ``JobQueue``."""
