"""Creates the parts of ``jq-server`` and ``jq-worker`` from the settings, and runs them."""
