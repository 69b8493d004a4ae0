"""Fixtures for every test. What one folder needs lives in that folder's conftest."""
