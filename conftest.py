"""Loads the plugins of the whole test run; pytest reads this list in the root conftest only."""

import pytest

# Helpers beside the tests explain a failed assert as the tests themselves do.
pytest.register_assert_rewrite("tests")

pytest_plugins = [
    "tests.plugin_signals",
    "tests.plugin_coverage",
    "tests.plugin_requirements",
    "tests.plugin_garbage",
    "tests.plugin_leaks",
    "tests.plugin_nightly",
    "tests.plugin_patience",
    "tests.services.plugin",
]
