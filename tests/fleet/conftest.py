"""Folders that servers can live in, and test runs inside test runs."""

from tests.services.conftest import folder, inner_run

__all__ = ["folder", "inner_run"]
