"""Authenticates callers, checks their roles and limits their calls. Uses no network framework."""
