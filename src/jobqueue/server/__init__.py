"""Implements the processes ``jq-server`` and ``jq-worker``, from the settings to the parts."""
