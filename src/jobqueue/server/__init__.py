"""The processes ``jq-server`` and ``jq-worker``: store, engine, faces and pool in one process."""
